"""A site against a coordinator that sends other requests than the study implies."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.site import gate
from dmtrl.federation.site.approval import approval_text
from dmtrl.federation.site.data_check import check_file
from dmtrl.federation.site.ledger import entries, verify
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study.approval_text import Leaving
from dmtrl.protocol import PROTOCOL, rounds
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from support.site_requests import PREPARE, begin, refusal, site_of
from support.studies import CLINIC, clinic, clinic_files


def begun(tmp_path: Path, **policy: Any) -> tuple[Site, int]:
    """A site with a prepared problem, and the number of its weights."""
    site = site_of(tmp_path, **{"parameters_per_row": 1.0, **policy})
    site.answer(encode(begin(site)))
    return site, decode(site.answer(encode(rounds.Describe()))).features + 1


NOT_IMPLIED: list[tuple[str, Any]] = [
    ("steps", np.ones(1, dtype=np.int64)),
    ("steps", np.zeros(2, dtype=np.int64)),
    ("sampling", "uniform"),
    ("local_solver", "sdca"),
    ("seed", 1),
    ("max_passes", 101),
    ("max_passes", 0),
    ("max_passes", 1.5),
    ("total_weight", np.array([1.0])),
    ("total_weight", np.array([60.0, 60.0])),
    ("density", float("nan")),
    ("evaluate", True),
    ("intercept", False),
    ("intercept_ridge", np.full(1, np.inf)),
    ("intercept_ridge", np.full(1, -0.5)),
    ("keep", 1),
    ("w", np.zeros((1, 3))),
    ("task_weight", np.ones(1)),
    ("first_step", float("nan")),
    ("first_step", 0.0),
    ("first_step", "x"),
    ("first_step", True),
]


@pytest.mark.parametrize(("field", "value"), NOT_IMPLIED)
def test_a_fit_that_the_study_does_not_imply_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    site, _ = begun(tmp_path)
    words = refusal(site, encode(replace(PREPARE, **{field: value})))
    assert words.startswith("the coordinator sent")
    assert "'prepare'" in words
    assert repr(field) in words
    assert site.answer(encode(PREPARE)).name == "prepared"


def test_every_field_of_a_fit_is_checked() -> None:
    assert {field.name for field in fields(rounds.Prepare)} == {name for name, _ in NOT_IMPLIED}


def test_the_row_weights_are_those_without_the_fold(tmp_path: Path) -> None:
    site, _ = begun(tmp_path)
    site.answer(encode(rounds.HoldOut(fold=0, folds=3, seed=0)))
    assert "'total_weight'" in refusal(site, encode(PREPARE))
    site.answer(encode(replace(PREPARE, total_weight=np.array([40.0]))))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("most", np.ones(1, dtype=np.int64)),
        ("eta", 0.5),
        ("pace", 0.1),
        ("relax", 0.9),
        ("relax", float("nan")),
        ("round", -1),
        ("target", float("nan")),
        ("step", np.ones(2)),
        ("step", np.zeros(1)),
        ("step", np.array([np.inf])),
        ("intercept_step", None),
        ("intercept_step", np.array([-1.0])),
        ("w", np.zeros((1, 1000))),
        ("w", np.full((1, 1), np.nan)),
        ("probe", np.zeros((1, 1))),
    ],
)
def test_a_round_that_the_study_does_not_imply_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    site, weights = begun(tmp_path)
    site.answer(encode(PREPARE))
    fine = rounds.Round(
        round=0, target=0.1, relax=1.6 - 1.0, w=np.zeros((1, weights)), step=np.ones(1), intercept_step=np.ones(1)
    )
    words = refusal(site, encode(replace(fine, **{field: value})))
    assert words == f"the coordinator sent a message 'round' whose {field!r} does not fit the study"
    assert site.answer(encode(fine)).name == "improved"


def test_scores_need_weights_that_fit(tmp_path: Path) -> None:
    site, weights = begun(tmp_path)
    site.answer(encode(PREPARE))
    for wrong in (np.zeros((1, weights - 1)), np.full((1, weights), np.nan)):
        assert "'w' does not fit" in refusal(site, encode(rounds.Score(w=wrong)))


def hostile_begins(fine: messages.Begin) -> list[messages.Begin]:
    missing = json.dumps({**json.loads(fine.preparation), "missing": ["50"]})
    coordinates = json.loads(fine.coordinates)
    return [
        replace(fine, preparation=missing),
        replace(fine, numbers=np.array([-1])),
        replace(fine, x_centre=fine.x_centre[:-1]),
        replace(fine, x_centre=np.full_like(fine.x_centre, np.nan)),
        *(
            replace(fine, coordinates=json.dumps(coordinates | wrong))
            for wrong in ({"column": True}, {"intercept": False}, {"y_centre": 1.0}, {"y_scale": 0.0})
        ),
    ]


def test_a_refused_problem_does_not_replace_the_one_before(tmp_path: Path) -> None:
    site, _ = begun(tmp_path)
    fine, stored = begin(site), site.folder / "run" / "begin.message"
    before = stored.read_bytes()
    for wrong in hostile_begins(fine):
        refusal(site, encode(wrong))
        assert stored.read_bytes() == before
        assert site.participation.problem.begun.preparation == fine.preparation


def test_a_refused_problem_is_not_stored(tmp_path: Path) -> None:
    site = site_of(tmp_path, parameters_per_row=0.1)
    assert "too large" in refusal(site, encode(begin(site)))
    for again in (site, Site(site.folder)):
        assert "must send 'begin'" in refusal(again, encode(rounds.Describe()))
        assert "must send 'begin'" in refusal(again, finish(site, 3))


def finish(site: Site, weights: int, value: float = 0.0) -> Message:
    return encode(
        messages.Finish(
            study=site.study.hash,
            names='["north"]',
            weights=np.full((1, weights), value),
            common=np.zeros(weights),
            reg_lambda=1.0,
            common_strength=0.0,
            primal=1.0,
            dual=1.0,
            converged=True,
            rounds=1,
        )
    )


def test_a_stored_problem_is_checked_again(tmp_path: Path) -> None:
    site, weights = begun(tmp_path)
    for wrong in hostile_begins(begin(site)):
        (site.folder / "run" / "begin.message").write_bytes(encode(wrong).encode())
        refusal(Site(site.folder), finish(site, weights))
        refusal(Site(site.folder), encode(rounds.Describe()))


def test_centres_and_means_must_fit(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    fine = begin(site)
    for x_centre, y_centre in (
        (fine.x_centre[:, None], 0.0),
        (np.full_like(fine.x_centre, np.inf), 0.0),
        (fine.x_centre, 1.0),
    ):
        norms = messages.MeasureNorms(preparation=fine.preparation, x_centre=x_centre, y_centre=y_centre)
        assert "centres that do not fit" in refusal(site, encode(norms))
    for means in (np.zeros(11), np.zeros((12, 60)), np.full(12, np.nan)):
        assert "12 finite means" in refusal(site, encode(messages.MeasureSpread(means=means)))


def test_an_answer_with_more_numbers_than_announced_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(tmp_path)
    announced = [Leaving("spread", "", 11, 5)]
    monkeypatch.setattr(gate, "what_leaves", lambda study, policy: announced)
    measure = encode(messages.MeasureSpread(means=np.zeros(12)))
    assert refusal(site, measure) == "the message 'spread' may hold at most 11 numbers"


def test_each_problem_counts_as_a_run(tmp_path: Path) -> None:
    site = site_of(tmp_path, most_runs=2, parameters_per_row=1.0)
    fine = begin(site)
    other, third = (replace(fine, x_centre=fine.x_centre + shift) for shift in (0.1, 0.2))
    for request in (fine, other, fine, other):  # the same problem again is no new run
        site.answer(encode(request))
    before = (site.folder / "run" / "begin.message").read_bytes()
    for again in (site, Site(site.folder)):
        assert refusal(again, encode(third)) == "the message 'begun' may leave this site at most 2 times"
        assert (site.folder / "run" / "begin.message").read_bytes() == before


def test_folds_with_few_rows_are_refused(tmp_path: Path) -> None:
    site, _ = begun(tmp_path, minimum_held_out=21)
    words = refusal(site, encode(rounds.HoldOut(fold=0, folds=3, seed=0)))
    assert words.startswith("a fold of a task would have fewer than 21 rows")
    assert site.answer(encode(rounds.HoldOut(fold=-1, folds=3, seed=0))).name == "description"


def test_many_folds_are_refused_and_the_approval_says_so(tmp_path: Path) -> None:
    study = clinic(text=CLINIC.replace("folds = 3", "folds = 21"))
    site = site_of(tmp_path, study, parameters_per_row=1.0, minimum_held_out=1)
    site.answer(encode(begin(site)))
    hold_out = encode(rounds.HoldOut(fold=0, folds=21, seed=0))
    assert refusal(site, hold_out) == "the study has 21 folds; a site allows at most 20"
    check = check_file(study, clinic_files(tmp_path)["north"])
    assert "it allows at most 20 folds" in approval_text(study, Policy("north", ""), check, tmp_path)
    few = approval_text(clinic(), Policy("north", "", minimum_held_out=21), check, tmp_path)
    assert "will refuse the cross-validation: a fold has too few rows" in few


@pytest.mark.parametrize(("minimum", "rows"), [(15, 15), (16, 0)])
def test_errors_over_few_held_out_rows_are_left_out(tmp_path: Path, minimum: int, rows: int) -> None:
    study = clinic(text=CLINIC.replace("folds = 3", 'folds = 3\nheld_out = "test"'))
    site = site_of(tmp_path, study, parameters_per_row=1.0, minimum_held_out=minimum)
    fine = begin(site)
    site.answer(encode(fine))
    answer = decode(site.answer(finish(site, len(fine.x_centre) + 1)))
    assert answer.rows.tolist() == [rows]
    assert (answer.loss > 0).tolist() == [rows > 0]


def test_a_result_that_is_refused_does_not_replace_the_model(tmp_path: Path) -> None:
    study = clinic(text=CLINIC.replace("folds = 3", 'folds = 3\nheld_out = "test"'))
    site = site_of(tmp_path, study, parameters_per_row=1.0, most_runs=1)
    fine = begin(site)
    weights = len(fine.x_centre) + 1
    site.answer(encode(fine))
    site.answer(finish(site, weights))
    model = site.folder / "results" / "model.dmtrl"
    before = model.read_bytes()
    assert "weights do not fit" in refusal(site, finish(site, weights + 1))
    assert "weights do not fit" in refusal(site, finish(site, weights, np.nan))
    assert "'finished' may leave this site at most 1 times" in refusal(site, finish(site, weights, 0.5))
    assert model.read_bytes() == before


def test_the_ledger_does_not_grow_with_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_REFUSALS", 3)
    site = site_of(tmp_path)
    for number in range(6):
        hello = encode(messages.Hello(study=f"{number:064d}"[::-1], protocol=PROTOCOL, dmtrl="0.1"))
        with pytest.raises(RefusedBySiteError):
            (site if number % 2 else Site(site.folder)).answer(hello)
    texts = [entry.text for entry in entries(site.folder / "ledger.jsonl")]
    assert len(texts) == verify(site.folder / "ledger.jsonl") == 3
    assert texts[-1].endswith("further refusals of this study are not recorded")


def test_a_refusal_quotes_little_of_what_the_coordinator_sent(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    with pytest.raises(RefusedBySiteError):
        site.answer(encode(messages.Hello(study=site.study.hash, protocol=PROTOCOL + 1, dmtrl="x" * 1_000_000)))
    assert site.ledger.path.stat().st_size < 5_000
