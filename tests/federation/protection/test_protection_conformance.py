"""The conformance suite of protections, on those that there are, and on broken ones."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.base import Allowance, Protection
from dmtrl.federation.protection.choice import protection_of
from dmtrl.federation.protection.conformance import _check_nothing_of_a_row, check_protection
from dmtrl.federation.protection.plain.protection import Plain
from dmtrl.federation.protection.plain.site import PlainSite
from dmtrl.federation.simulate import simulate
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study.approval_text import Leaving
from dmtrl.federation.study.study_file import Study, parse_study
from dmtrl.protocol.study import CellCounts, MeasureNorms
from support.private_studies import masked_text, private_study
from support.studies import clinic, clinic_files

LOOSE = Policy("", "", minimum_rows=5, parameters_per_row=10.0)
STUDIES: dict[str, Callable[[], Study]] = {
    "plain": clinic,
    "moments": lambda: private_study("moments", "squared"),
    "newton": lambda: private_study("newton"),
    "rounds": lambda: private_study("rounds"),
    "masks": lambda: parse_study(masked_text().encode()),
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_protection_meets_its_obligations(tmp_path: Path, name: str) -> None:
    if name == "masks":
        pytest.importorskip("cryptography")
    study = STUDIES[name]()
    result = check_protection(study, clinic_files(tmp_path), tmp_path / "study", LOOSE)
    assert result.noisy == protection_of(study).noisy
    assert result.privacy == protection_of(study).guarantee()


def test_each_study_has_its_protection() -> None:
    found = {name: protection_of(study()).name for name, study in STUDIES.items()}
    expected = {"plain": "plain", "moments": "noise", "newton": "noise", "rounds": "noise", "masks": "masks"}
    assert found == expected


def _unannounced(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Plain.what_leaves

    def without_norms(self: Plain, allowance: Allowance) -> list[Leaving]:
        return [item for item in inner(self, allowance) if item.message != "norms"]

    monkeypatch.setattr(Plain, "what_leaves", without_norms)


def _two_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "guarantee", lambda self, epsilon=0.0: "Nothing.\nTrust us.")


def _silent_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "approval_lines", lambda self, epsilon, budget: [])


def _forgets_between_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers depend on how often the half was made, as if they had state that is not on the disk."""
    inner, made = PlainSite.__init__, [0]

    def counting(self: PlainSite, side: Any) -> None:
        inner(self, side)
        made[0] += 1
        shift = made[0]

        def statistics(request: Any) -> Any:
            found = side.statistics(request)
            if isinstance(found, CellCounts):
                found.sums[:] += 0.01 * shift
            return found

        self.handlers = {
            kind: statistics if handler == side.statistics and kind is not MeasureNorms else handler
            for kind, handler in self.handlers.items()
        }

    monkeypatch.setattr(PlainSite, "__init__", counting)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (_unannounced, RefusedBySiteError, "the message 'norms' was not announced"),
        (_two_sentences, AssertionError, "one sentence"),
        (_silent_approval, AssertionError, "a line of the approval"),
        (_forgets_between_restarts, AssertionError, "restarts changed the result"),
    ],
)
def test_a_protection_that_breaks_an_obligation_is_noticed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    error: type[Exception],
    words: str,
) -> None:
    fault(monkeypatch)
    with pytest.raises(error, match=words):
        check_protection(clinic(), clinic_files(tmp_path), tmp_path / "study", replace(LOOSE, most_runs=100))


def test_a_row_and_targets_in_what_left_are_noticed(tmp_path: Path) -> None:
    simulate(clinic(), clinic_files(tmp_path), tmp_path / "study", policy=LOOSE)
    site = Site(tmp_path / "study" / "sites" / "north")
    blocks = site.participation.problem.blocks()
    _check_nothing_of_a_row(site, b"nothing of that")
    with pytest.raises(AssertionError, match="a row left"):
        _check_nothing_of_a_row(site, b"before" + blocks.X[3].tobytes() + b"after")
    with pytest.raises(AssertionError, match="targets left"):
        _check_nothing_of_a_row(site, b"before" + blocks.y[8:16].astype(float).tobytes())


def test_a_protection_must_state_everything() -> None:
    assert Protection.__abstractmethods__ == {"guarantee", "what_leaves", "approval_lines", "coordinator", "site"}
