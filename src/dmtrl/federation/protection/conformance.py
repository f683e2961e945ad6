"""The obligations of a protection, as a suite that the author of a new one can run.

`check_protection` runs a small study in this process, twice: once undisturbed, and once more in the same folders with
sites that are lost again and again. It imports from the folders above this one, as no other module here does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dmtrl.engines.recovery import Lost
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.coordinator.results import StudyResult
from dmtrl.federation.coordinator.run import run_study
from dmtrl.federation.protection.base import Allowance, Protection
from dmtrl.federation.protection.choice import protection_of
from dmtrl.federation.simulate import LocalSites, simulate
from dmtrl.federation.site.approval import what_leaves
from dmtrl.federation.site.budget import Budget
from dmtrl.federation.site.gate import LEDGER
from dmtrl.federation.site.ledger import entries, verify
from dmtrl.federation.site.policy import MESSAGES, Policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.codec import ANSWER_NAMES, ANSWERS, name_of
from dmtrl.protocol.message import Message
from dmtrl.protocol.study import Begin, Finish, Hello
from dmtrl.solver.checkpoint import Checkpoint

_OF_EVERY_STUDY = (Hello, Begin, Finish)  # requests that the site itself answers
_LOST_EVERY = 7  # fetches: a site is lost after its work is done, and its answer with it


class _LosingSites(LocalSites):
    """Sites in this process that are lost again and again. `left`: the bytes of everything that they sent."""

    def __init__(self, folders: Sequence[Path]):
        super().__init__(folders)
        self._fetched = 0
        self.left: dict[str, list[bytes]] = {name: [] for name in self.names}

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        worker, answer = super().fetch(timeout)
        self.left[self.names[worker]].append(answer.encode())
        self._fetched += 1
        if self._fetched % _LOST_EVERY == 0:
            raise Lost(worker, "lost by the conformance suite")
        return worker, answer


def check_protection(
    study: Study, files: Mapping[str, str | Path], folder: Path, policy: Policy | None = None
) -> StudyResult:
    """Check the obligations of the protection that a study declares; AssertionError at the first that is not met.

    Parameters
    ----------
    study : Study
        A small study whose table [privacy] chooses the protection.
    files : mapping
        The data file of each site, by name.
    folder : Path
        A folder that does not exist yet; the sites and the results are written there.
    policy : Policy, default=None
        Thresholds of every site, instead of the default ones.

    Returns
    -------
    StudyResult
        That of the undisturbed run.
    """
    protection = protection_of(study)
    assert protection.study is study
    _check_statements(protection, folder)
    first = simulate(study, files, folder, policy=policy)
    folders = [folder / "sites" / name for name in sorted(files)]
    for place in folders:
        _check_requests(Site(place))
        _check_ledger(place, study)
    carrier = _LosingSites(folders)
    often = Checkpoint(folder / "again" / "checkpoint", every_rounds=2)  # what happens must not depend on the time
    again = run_study(study, carrier, carrier.names, folder / "again", checkpoint=often)
    _check_same(first, again)
    for place in folders:
        _check_ledger(place, study)
        _check_nothing_of_a_row(Site(place), b"".join(carrier.left[place.name]))
    return first


def _check_statements(protection: Protection, folder: Path) -> None:
    """What the staff of a site read: one sentence of guarantee, lines for the approval, and what leaves."""
    guarantee = protection.guarantee()
    assert guarantee.endswith("."), "guarantee() is one sentence"
    assert "\n" not in guarantee, "guarantee() is one sentence, on one line"
    lines = protection.approval_lines(1.0, Budget(folder, 8.0, 1e-5))
    assert not any("\n" in line for line in lines), "approval_lines() are lines"
    assert any(line.startswith("Privacy: ") for line in lines), "a line of the approval begins with 'Privacy: '"
    leaving = protection.what_leaves(Allowance(tasks=2, runs=3, rounds=100))
    names = [item.message for item in leaving]
    assert len(set(names)) == len(names), "what_leaves() lists a message once"
    assert set(names) <= set(MESSAGES), "what_leaves() lists answers of protocol/"
    assert {ANSWER_NAMES[name_of(kind)] for kind in _OF_EVERY_STUDY} <= set(names), "every study has these messages"
    assert all(item.numbers >= 0 and item.times >= 0 and item.content for item in leaving)


def _check_requests(site: Site) -> None:
    """The half answers requests of protocol/ whose answers are announced, and refuses all others unread."""
    half = site.participation.half
    announced = {item.message for item in what_leaves(site.study, site.policy)}
    for request in half.handlers:
        assert request in ANSWERS, f"{request.__name__} is not a request of protocol/"
        assert request not in _OF_EVERY_STUDY, f"{request.__name__} is answered by the site itself"
        assert name_of(ANSWERS[request]) in announced, f"what_leaves() does not list the answer to {request.__name__}"
    for request in set(ANSWERS) - set(half.handlers) - set(_OF_EVERY_STUDY):
        name = name_of(request)
        reason = _refusal(site, Message(name))
        assert reason, f"the site answered {name!r}, for which the protection has no handler"
        if name_of(ANSWERS[request]) in MESSAGES:  # else the policy of every site refuses it first
            assert reason == half.withheld(name), "the refusal says why the answer is withheld"


def _refusal(site: Site, request: Message) -> str:
    """Why a site refuses a request; empty if it does not."""
    try:
        site.answer(request)
    except RefusedBySiteError as refusal:
        return refusal.reason
    return ""


def _check_ledger(place: Path, study: Study) -> None:
    """Neither more numbers nor more messages left than the approval says."""
    path = place / LEDGER
    assert verify(path) > 0
    most = {item.message: item for item in what_leaves(study, Site(place).policy)}
    times: Counter[str] = Counter()
    for entry in entries(path):
        if entry.name != "refused":
            assert entry.numbers <= most[entry.name].numbers, f"{entry.name!r} held more numbers than announced"
            times[entry.name] += not entry.repeated
    for name, count in times.items():
        assert count <= most[name].times, f"{name!r} left more often than announced"


def _check_same(first: StudyResult, again: StudyResult) -> None:
    """Sites that were restarted, and asked again, give the same bits."""
    found = [(one.primal, one.dual, one.reg_lambda, one.tasks) for one in (first, again)]
    assert found[0] == found[1], "restarts changed the result"
    assert (first.model is None) == (again.model is None)
    if first.model is not None:
        assert np.array_equal(first.model.coef_, again.model.coef_), "restarts changed the weights"


def _check_nothing_of_a_row(site: Site, left: bytes) -> None:
    """No row of features, and no piece of the targets, is in what left."""
    assert left
    blocks = site.participation.problem.blocks()
    rows = np.ascontiguousarray(blocks.X, dtype=float)
    for row in rows[: min(len(rows), 50)]:
        assert row.tobytes() not in left, "a row left the site"
    targets = np.ascontiguousarray(blocks.y, dtype=float)
    for i in range(0, len(targets) - 8, 8):
        assert targets[i : i + 8].tobytes() not in left, "targets left the site"
