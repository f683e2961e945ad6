"""A whole study in one process: the same sites, messages and bits as over a network."""

import queue
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dmtrl.engines.recovery import Refused
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.coordinator.results import OnEvent, StudyResult
from dmtrl.federation.coordinator.run import run_study
from dmtrl.federation.site.approval import approval_text, approve, create_site
from dmtrl.federation.site.data_check import check_file
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study.study_file import Study, check_site_name
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.protocol.codec import received
from dmtrl.protocol.message import Message


class LocalSites:
    """A carrier of sites in this process, for `run_study`."""

    def __init__(self, folders: Sequence[Path]):
        self._sites = [Site(folder) for folder in folders]
        self._posted: queue.SimpleQueue[tuple[int, int, Sequence[Message]]] = queue.SimpleQueue()
        self._last: dict[int, tuple[int, Message]] = {}  # the number and the answer of each site's last post

    @property
    def names(self) -> list[str]:
        return [site.name for site in self._sites]

    @property
    def n_workers(self) -> int:
        return len(self._sites)

    def renew(self, worker: int) -> None:
        self._sites[worker] = Site(self._sites[worker].folder)
        self._last.pop(worker, None)

    def post(self, worker: int, number: int, messages: Sequence[Message]) -> None:
        # what does not survive the wire format is lost here too
        self._posted.put((worker, number, [received(message.encode()) for message in messages]))

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        try:
            worker, number, messages = self._posted.get_nowait()
        except queue.Empty:
            raise TimeoutError("no site was sent a message") from None
        if not messages:
            return worker, Message("alive")
        if self._last.get(worker, (0,))[0] != number:
            try:
                for message in messages:
                    answer = self._sites[worker].answer(message)
            except RefusedBySiteError as refusal:
                name = self._sites[worker].name
                raise Refused(worker, RefusedBySiteError(refusal.reason, refusal.detail, name)) from refusal
            self._last[worker] = number, received(answer.encode())
        return worker, self._last[worker][1]

    def close(self) -> None:
        pass


def _approval_texts(
    study: Study, files: Mapping[str, str | Path], folders: Mapping[str, Path], policy: Policy | None
) -> dict[str, str]:
    """What each site approves. An error if there are too few sites or if a file does not fit the study."""
    if len(files) < study.limits.sites:
        raise ValueError(f"the study needs at least {study.limits.sites} sites, got {len(files)}")
    texts = {}
    for name in sorted(files):
        check_site_name(name)
        planned = replace(policy or Policy(name, ""), site=name, data=str(files[name]))
        check = check_file(study, Path(files[name]), planned.minimum_rows)
        if check.data is None:
            first = check.errors[0]
            raise RefusedBySiteError(f"its file does not fit the study: {first.public}", first.text, name)
        texts[name] = approval_text(study, planned, check, folders[name])
    return texts


def simulate(
    study: Study,
    files: Mapping[str, str | Path],
    out: str | Path,
    progress: OnEvent = lambda event: None,
    policy: Policy | None = None,
) -> StudyResult:
    """Run a study in this process. files: the data file of each site, by name.

    The folder `out` gets the coordinator's model and result, and a folder `sites/NAME` for each site with its policy,
    its ledger and its model. policy: thresholds of every site, instead of the default ones.
    """
    out = Path(out)
    folders = {name: out / "sites" / name for name in sorted(files)}
    texts = _approval_texts(study, files, folders, policy)  # nothing is written before all files are checked
    for name, folder in folders.items():
        create_site(folder, name, files[name], policy)
        approve(folder, study, texts[name])
    carrier = LocalSites(list(folders.values()))
    with single_threaded_blas():  # as at a site, for the same bits
        return run_study(study, carrier, carrier.names, out, progress)
