"""Masked sums: they cancel, hide, refuse what is out of range, and give the result of the clear run."""

import time
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmtrl import storage
from dmtrl.engines.recovery import Lost
from dmtrl.exceptions import RefusedBySiteError, StudyError, WorkerLostError
from dmtrl.federation.coordinator.run import run_study
from dmtrl.federation.protection.masks.coordinator import rotated
from dmtrl.federation.protection.masks.masking import masked, new_key, public_part, unmasked
from dmtrl.federation.simulate import LocalSites, simulate
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study.study_file import parse_study
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import encode
from dmtrl.protocol.message import Message
from support.byte_search import found_in
from support.private_studies import masked_text, numbers_of_single_sites
from support.studies import SITES, approved_site, clinic_files

ALLOWED = Policy("", "", parameters_per_row=1.0)


def keys_of(count: int) -> tuple[list[bytes], np.ndarray]:
    private = [new_key() for _ in range(count)]
    return private, np.array([public_part(key) for key in private])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=6), st.integers(3, 6), st.integers(0, 99))
def test_masks_cancel_in_the_sum(numbers: list[float], sites: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [np.array(numbers) * rng.standard_normal() for _ in range(sites)]
    private, keys = keys_of(sites)
    sent = [masked(part, key, keys, "sum 1") for part, key in zip(parts, private, strict=True)]
    np.testing.assert_allclose(unmasked(sent), np.sum(parts, axis=0), rtol=0, atol=1e-14 * np.abs(parts).max() + 1e-17)


def test_what_a_site_sends_is_random_by_itself() -> None:
    """All sites but one together with the server see uniform bits: the mean and the spread of 64-bit integers."""
    private, keys = keys_of(4)
    sent = masked(np.zeros(20_000), private[0], keys, "sum")
    share = sent.astype(float) / 2.0**64
    assert abs(share.mean() - 0.5) < 0.01
    assert abs(share.std() - 12**-0.5) < 0.01
    other = masked(np.zeros(20_000), private[0], keys, "another sum")
    assert abs(np.corrcoef(share, other.astype(float))[0, 1]) < 0.03, "another label has other masks"


def test_a_sum_without_a_site_cannot_be_read() -> None:
    private, keys = keys_of(4)
    sent = [masked(np.ones(50), key, keys, "sum") for key in private]
    assert np.allclose(unmasked(sent), 4.0)
    try:
        partial = unmasked(sent[:3])
    except ValueError:
        return  # beyond the range, which is as good
    assert not np.isclose(partial, 3.0).any()


def test_numbers_beyond_the_range_are_refused_with_a_sentence() -> None:
    private, keys = keys_of(3)
    for number in (1e18, np.nan, np.inf):
        with pytest.raises(RefusedBySiteError, match="beyond the range"):
            masked(np.array([number]), private[0], keys, "sum")
    lie = [masked(np.zeros(1), key, keys, "sum") for key in private]
    lie[1] = lie[1] + np.uint64(2**63 - 5)
    with pytest.raises(ValueError, match="beyond the agreed range"):
        unmasked(lie)
    with pytest.raises(ValueError, match="different lengths"):
        unmasked([lie[0], lie[1][:1], lie[2]])


def test_two_sites_are_too_few_and_the_own_key_must_be_there() -> None:
    private, keys = keys_of(3)
    with pytest.raises(RefusedBySiteError, match="at least 3"):
        masked(np.zeros(1), private[0], keys[:2], "sum")
    with pytest.raises(RefusedBySiteError, match="each of them once"):
        masked(np.zeros(1), new_key(), keys, "sum")


def test_the_keys_must_be_different_and_as_many_as_the_study_needs() -> None:
    private, keys = keys_of(4)
    with pytest.raises(RefusedBySiteError, match="each of them once"):
        masked(np.zeros(1), private[0], keys[[0, 1, 2, 2]], "sum")
    with pytest.raises(RefusedBySiteError, match="at least 5 different sites"):
        masked(np.zeros(1), private[0], keys, "sum", least=5)
    assert len(masked(np.zeros(1), private[0], keys, "sum", least=4)) == 2


@pytest.mark.parametrize(("m", "d"), [(3, 5), (5, 3), (4, 4), (2, 6)])
def test_a_rotation_has_the_same_gram_matrix_and_sum(m: int, d: int) -> None:
    V = np.random.default_rng(m).standard_normal((m, d))
    W = rotated(V.T @ V, V.sum(axis=0), m)
    np.testing.assert_allclose(W.T @ W, V.T @ V, atol=1e-12)
    np.testing.assert_allclose(W.sum(axis=0), V.sum(axis=0), atol=1e-12)


class Recording(LocalSites):
    """A carrier that keeps every message, in both directions."""

    def __init__(self, folders: list[Path]):
        super().__init__(folders)
        self.messages: list[Message] = []

    def post(self, worker: int, number: int, messages: object) -> None:
        self.messages += messages  # type: ignore[operator]
        super().post(worker, number, messages)  # type: ignore[arg-type]

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        worker, message = super().fetch(timeout)
        self.messages.append(message)
        return worker, message


def _folders(tmp_path: Path, source: str) -> list[Path]:
    study, files = parse_study(source.encode()), clinic_files(tmp_path)
    return [approved_site(tmp_path / name, study, name, files[name], ALLOWED).folder for name in SITES]


def test_the_result_is_that_of_the_clear_run(tmp_path: Path) -> None:
    files = clinic_files(tmp_path)
    results = [
        simulate(
            parse_study(masked_text().replace('"masked"', f'"{kind}"').encode()),
            files,
            tmp_path / kind,
            policy=ALLOWED,
        )
        for kind in ("clear", "masked")
    ]
    clear, hidden = (result.model for result in results)
    assert hidden.certificate_.relative_gap <= 1e-7, "certified from sums alone"
    np.testing.assert_allclose(hidden.coef_, clear.coef_, atol=1e-6 * np.abs(clear.coef_).max())
    np.testing.assert_allclose(hidden.intercept_, clear.intercept_, atol=1e-5)
    np.testing.assert_allclose(hidden.task_correlation_, clear.task_correlation_, atol=1e-4)


@pytest.mark.parametrize("results", ["summary", "weights"])
def test_no_message_holds_a_number_of_a_site(tmp_path: Path, results: str) -> None:
    """Weights and b of a site are in no message, except for final weights that it publishes. What the server has in
    its memory is examined over a network: test_private_flare.py."""
    source = masked_text(results=f'[results]\ncoordinator = "{results}"')
    study = parse_study(source.encode())
    carrier = Recording(_folders(tmp_path, source))
    result = run_study(study, carrier, carrier.names, tmp_path / "server")
    assert (result.model is None) == (results == "summary")
    assert "masked" in {message.name for message in carrier.messages}
    states = [tmp_path / name / "masked" / "state.npz" for name in SITES]
    found = found_in(b"".join(message.encode() for message in carrier.messages), numbers_of_single_sites(states))
    weights = np.concatenate([storage.load(str(path), "dmtrl masked sums 1")[1]["best"].ravel() for path in states])
    np.testing.assert_array_equal(found, np.unique(weights) if results == "weights" else [])


def test_a_site_that_is_lost_ends_the_study(tmp_path: Path) -> None:
    """Without it the sums of the others would differ from those before by its numbers."""
    files = {**clinic_files(tmp_path)}
    files["east"] = tmp_path / "east.csv"
    files["east"].write_bytes(files["north"].read_bytes())
    study = parse_study(masked_text().encode())
    (tmp_path / "sites").mkdir()
    folders = [
        approved_site(tmp_path / "sites" / name, study, name, files[name], ALLOWED).folder for name in sorted(files)
    ]
    carrier = Losing(folders)
    with pytest.raises(WorkerLostError, match="did not respond"):
        run_study(study, carrier, carrier.names, tmp_path / "server", patience=0.2)


class Losing(LocalSites):
    """Loses the last site for good after its tenth message."""

    def __init__(self, folders: list[Path]):
        super().__init__(folders)
        self._count = 0

    def post(self, worker: int, number: int, messages: object) -> None:
        self._count += worker == 3
        if worker != 3 or self._count <= 10:
            super().post(worker, number, messages)  # type: ignore[arg-type]

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        if self._count == 11:
            self._count = 12  # from now on it is silent
            raise Lost(3, "the connection broke", False)
        try:
            return super().fetch(timeout)
        except TimeoutError:
            time.sleep(min(0.05, timeout or 0.0))
            raise


def test_a_site_answers_a_sum_once_and_in_turn(tmp_path: Path) -> None:
    """A mask that was used for two sums would show their difference."""
    folders = _folders(tmp_path, masked_text())
    sites = [Site(folder) for folder in folders]
    study = sites[0].study
    begin = encode(messages.ShareKey(study=study.hash, session="s"))
    keys = np.array([site.answer(begin).arrays["key"] for site in sites])
    ask = messages.SumUp(
        study=study.hash, session="s", counter=0, question="rows", text="", numbers=np.zeros(0), keys=keys
    )
    answers = [site.answer(encode(ask)).arrays["values"] for site in sites]
    assert unmasked(answers)[0] == 180
    again = Site(folders[0])
    repeated = again.answer(encode(changed(ask, question="cell_counts"))).arrays["values"]
    np.testing.assert_array_equal(repeated, answers[0], "another question with the same number gets the old answer")
    for fields, words in (
        ({"counter": 5}, "out of turn"),
        ({"counter": 1, "session": "t"}, "not begun here"),
        ({"counter": 1, "keys": keys[::-1]}, "other keys than before"),
        ({"counter": 1, "question": "rows of one"}, "does not have"),
        ({"counter": 1, "question": "move"}, "does not fit"),
    ):
        with pytest.raises(RefusedBySiteError, match=words):
            again.answer(encode(changed(ask, **fields)))  # type: ignore[arg-type]
    with pytest.raises(RefusedBySiteError, match="numbers of this site alone"):
        again.answer(encode(messages.CountCells()))


def test_a_sum_is_made_under_the_lock_of_the_ledger(tmp_path: Path) -> None:
    """Two processes of one site must not use a mask twice: nobody else gets the lock while a sum or a key is made."""
    fcntl = pytest.importorskip("fcntl")
    sites = [Site(folder) for folder in _folders(tmp_path, masked_text(limits="sites = 3"))]
    site, study, held = sites[0], sites[0].study, []

    def is_locked() -> bool:
        with open(site.ledger.path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def watched(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(request: Any) -> Any:
            held.append(is_locked())
            return inner(request)

        return call

    half: Any = site.participation.half
    half._share_key, half._statistics = watched(half._share_key), watched(half._statistics)
    begin = encode(messages.ShareKey(study=study.hash, session="s"))
    keys = np.array([one.answer(begin).arrays["key"] for one in sites])
    ask = messages.SumUp(
        study=study.hash, session="s", counter=0, question="rows", text="", numbers=np.zeros(0), keys=keys
    )
    site.answer(encode(ask))
    assert held == [True, True]
    assert not is_locked()


def test_a_site_refuses_fewer_keys_than_the_study_has_sites(tmp_path: Path) -> None:
    sites = [Site(folder) for folder in _folders(tmp_path, masked_text(limits="sites = 4"))]
    study = sites[0].study
    begin = encode(messages.ShareKey(study=study.hash, session="s"))
    keys = np.array([site.answer(begin).arrays["key"] for site in sites])
    ask = messages.SumUp(
        study=study.hash, session="s", counter=0, question="rows", text="", numbers=np.zeros(0), keys=keys
    )
    with pytest.raises(RefusedBySiteError, match="at least 4 different sites"):
        sites[0].answer(encode(ask))


def test_bad_masked_studies_are_refused_with_a_sentence() -> None:
    for source, words in (
        (masked_text(limits="sites = 2"), "at least 3"),
        (
            masked_text(limits='sites = 3\non_lost = "go_on"'),
            r"line \d+: \[limits\] on_lost must be 'stop' with masked",
        ),
        (masked_text().replace("lambda = 0.03", "lambda = [0.1, 0.2]"), "one number"),
        (masked_text(results='[results]\ncoordinator = "summary"\nsites = "all"'), "needs coordinator"),
    ):
        with pytest.raises(StudyError, match=words):
            parse_study(source.encode())
