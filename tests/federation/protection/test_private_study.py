"""Whole private studies in one process: what leaves, what is withheld, what is spent, and what a crash changes."""

import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dmtrl
from dmtrl.exceptions import RefusedBySiteError, StudyError
from dmtrl.federation.protection.base import Bounds
from dmtrl.federation.protection.noise import releases
from dmtrl.federation.protection.noise.accounting import cost_of, epsilon_of, mu_of
from dmtrl.federation.protection.noise.declared import declared
from dmtrl.federation.protection.noise.releases import step_size
from dmtrl.federation.simulate import simulate
from dmtrl.federation.site.approval import approval_text
from dmtrl.federation.site.budget import Budget
from dmtrl.federation.site.data_check import check_file
from dmtrl.federation.site.ledger import entries
from dmtrl.federation.site.policy import Policy, read_policy, write_policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study import preparation as federated
from dmtrl.federation.study.study_file import Study, parse_study
from dmtrl.protocol import PROTOCOL, rounds
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import decode, encode
from support.private_studies import private_study, private_text
from support.shell_data import run as shell
from support.studies import SITES, approved_site, clinic_files
from support.waiting import alive, wait_for

ALLOWED = Policy("", "", parameters_per_row=1.0)


def test_a_private_study_sends_noisy_releases_and_nothing_else(tmp_path: Path) -> None:
    study = private_study("auto", "logistic")
    result = simulate(study, clinic_files(tmp_path), tmp_path / "out", policy=ALLOWED)
    for site in SITES:
        left = [entry.name for entry in entries(tmp_path / "out" / "sites" / site / "ledger.jsonl")]
        assert left == ["welcome", "begun", *["released"] * study.privacy.releases, "finished"]
    assert result.noisy
    assert "(4, 1e-05)-differentially private" in result.privacy
    assert all(task.error is None and task.cv_error is None for task in result.tasks)
    model = dmtrl.load(tmp_path / "out" / "model.dmtrl")
    assert model.certificate_.relative_gap <= 1e-3, "of the noisy problem"
    assert (tmp_path / "out" / "sites" / "west" / "results" / "held_out.json").exists(), "errors stay at the site"


@pytest.mark.parametrize(
    ("loss", "mode"), [("squared", "moments"), ("logistic", "newton"), ("hinge", "rounds"), ("absolute", "rounds")]
)
def test_the_mode_follows_from_the_loss(loss: str, mode: str) -> None:
    study = private_study("auto", loss)
    assert study.privacy.mode == mode
    prepared, coordinates = declared(study)
    assert len(prepared.feature_names) == study.declared_features == len(coordinates.x_centre)


def test_with_little_noise_the_private_model_is_nearly_that_of_the_rows(tmp_path: Path) -> None:
    """epsilon 100 and 2,000 rows: all three modes find the weights of a fit of the same rows without noise."""
    files = clinic_files(tmp_path, rows=2000)
    for mode, loss, most in (("moments", "squared", 0.1), ("newton", "logistic", 0.1), ("rounds", "logistic", 0.25)):
        study = private_study(mode, loss, epsilon=100.0, more="releases = 30" if mode == "rounds" else "")
        policy = Policy("", "", epsilon=200.0, epsilon_per_study=200.0)
        result = simulate(study, files, tmp_path / f"{mode}-{loss}", policy=policy)
        expected = _without_noise(study, files)
        error = np.linalg.norm(result.model.coef_ - expected) / np.linalg.norm(expected)
        assert error < most, (mode, loss, error)


def _without_noise(study: Study, files: dict[str, Path]) -> np.ndarray:
    """Coefficients of the ordinary estimator on the rows that the sites would use."""
    from dmtrl.federation.protection.noise.moments import clip_rows

    prepared, _ = declared(study)
    parts = []
    for site in sorted(files):
        data = check_file(study, files[site]).data
        assert data is not None
        parts.append((clip_rows(prepared.transform(data.table), study.privacy.row_norm), data.y))
    kind = dmtrl.MTRLClassifier if study.classification else dmtrl.MTRLRegressor
    model = kind(loss=study.fit.loss, reg_lambda=study.fit.reg_lambda[0], common=1.0, tol=1e-6)
    return np.asarray(model.fit(dict(enumerate(parts))).coef_)


def test_requests_that_would_leave_without_noise_are_refused(tmp_path: Path) -> None:
    files = clinic_files(tmp_path)
    site = approved_site(tmp_path / "site", private_study(), "north", files["north"], ALLOWED)
    for request in (messages.CountCells(), messages.MeasureSpread(means=np.zeros(1))):
        with pytest.raises(RefusedBySiteError, match="would leave without noise"):
            site.answer(encode(request))
    for inner in (rounds.Describe(digest=True), rounds.HoldOut(fold=0, folds=3, seed=0), rounds.Score(w=np.zeros(1))):
        with pytest.raises(RefusedBySiteError, match="would leave without noise"):
            site.answer(encode(inner))


def begun_site(tmp_path: Path, study: Study, policy: Policy = ALLOWED) -> Site:
    """A site that has begun a private study."""
    files = clinic_files(tmp_path)
    site = approved_site(tmp_path / "site", study, "north", files["north"], policy)
    prepared, coordinates = declared(study)
    begin = messages.Begin(
        study=study.hash,
        preparation=federated.to_json(prepared),
        x_centre=coordinates.x_centre,
        coordinates=federated.coordinates_to_json(coordinates),
        numbers=np.zeros(1, dtype=np.int64),
    )
    site.answer(encode(begin))
    return site


def release(study: Study, number: int = 0, point: float = 0.0) -> messages.Release:
    return messages.Release(
        study=study.hash, number=number, point=np.full((1, study.declared_features + 1), point), step=0.0
    )


def test_a_release_is_made_once_and_for_all(tmp_path: Path) -> None:
    """Other points, other runs and new processes get the bytes of the first release, and the point that it was for."""
    study = private_study("newton")
    site = begun_site(tmp_path, study)
    first = site.answer(encode(release(study))).encode()
    assert site.answer(encode(release(study, point=0.5))).encode() == first
    assert Site(site.folder).answer(encode(release(study))).encode() == first
    second = decode(site.answer(encode(release(study, 1, 0.5))))
    assert (second.point == 0.5).all()
    with pytest.raises(RefusedBySiteError, match="4 releases"):
        site.answer(encode(release(study, 4)))
    assert len((site.folder / "budget.jsonl").read_bytes().splitlines()) == 1


@pytest.mark.parametrize("point", [np.nan, np.inf, 1e9])
def test_points_that_do_not_fit_are_refused_before_anything_is_charged(tmp_path: Path, point: float) -> None:
    study = private_study("newton")
    site = begun_site(tmp_path, study)
    with pytest.raises(RefusedBySiteError, match="point"):
        site.answer(encode(release(study, point=point)))
    assert not (site.folder / "budget.jsonl").exists()


def test_a_release_that_fails_is_charged_and_ends_the_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the solver fails can depend on the rows: it is told once, and no other point gets another answer."""
    study = private_study("rounds")
    site = begun_site(tmp_path, study)
    step = step_size(study.privacy, study.loss)

    def ask(site: Site, number: int, point: float = 0.0) -> bytes:
        return site.answer(encode(replace(release(study, number, point), step=step))).encode()

    with monkeypatch.context() as patch:
        patch.setattr(releases, "_MOST_ROUNDS", 0)  # the solver gives up
        with pytest.raises(RefusedBySiteError, match="makes no further ones in this study"):
            ask(site, 0)
    assert len((site.folder / "budget.jsonl").read_bytes().splitlines()) == 1
    for number, point in ((0, 0.0), (0, 0.5), (1, 0.0), (2, 1e9)):
        with pytest.raises(RefusedBySiteError, match="makes no further ones in this study"):
            ask(Site(site.folder), number, point)
    assert not list((site.folder / "private").glob("*/*.message"))


def test_what_was_released_before_a_failure_can_still_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = private_study("rounds")
    site = begun_site(tmp_path, study)
    first = encode(replace(release(study), step=step_size(study.privacy, study.loss)))
    before = site.answer(first).encode()
    monkeypatch.setattr(releases, "_MOST_ROUNDS", 0)
    with pytest.raises(RefusedBySiteError, match="makes no further ones"):
        site.answer(encode(replace(decode(first), number=1)))
    assert site.answer(first).encode() == before


def test_targets_are_clipped_to_their_range(tmp_path: Path) -> None:
    text = private_text("rounds", "absolute").replace("range = [-10, 30]", "range = [1, 2]")
    study = parse_study(text.encode())
    site = begun_site(tmp_path, study)
    y = site.participation.problem.blocks(Bounds(study.privacy.row_norm, study.target.range)).y
    assert np.abs(y).max() == pytest.approx(0.5), "the middle of the range is 0"
    assert np.ptp(site.data.y) > 1.0


def test_another_preparation_than_the_declared_one_is_refused(tmp_path: Path) -> None:
    study = private_study("newton")
    site = begun_site(tmp_path, study)
    _, coordinates = declared(study)
    begin = site.participation.problem.begun
    changed = federated.from_json(begin.preparation)
    age = changed.columns[0]
    object.__setattr__(age, "scale", age.scale * 2)  # type: ignore[union-attr]
    for field, value in (("preparation", federated.to_json(changed)), ("x_centre", coordinates.x_centre + 1)):
        with pytest.raises(RefusedBySiteError, match="another way than its file declares"):
            site.answer(encode(messages.Begin(**{**vars(begin), field: value})))


def test_a_run_that_would_exceed_the_budget_is_refused_before_anything_leaves(tmp_path: Path) -> None:
    site = begun_site(tmp_path, private_study("newton", epsilon=4.0))
    site.answer(encode(release(site.study)))
    more = parse_study(private_text("newton", epsilon=7.5).replace('"clinic"', '"clinic2"', 1).encode())
    before = len(list(entries(site.folder / "ledger.jsonl")))
    other = approved_site(site.folder, more, "north", tmp_path / "north.csv", ALLOWED)
    with pytest.raises(RefusedBySiteError, match=r"privacy budget of this site \(epsilon 8; 4 of it is spent\)"):
        other.answer(encode(messages.Hello(study=more.hash, protocol=PROTOCOL, dmtrl="")))
    with pytest.raises(RefusedBySiteError, match="not approved here"):
        other.answer(encode(release(more)))
    names = [entry.name for entry in entries(site.folder / "ledger.jsonl")][before:]
    assert set(names) == {"refused"}


def test_budgets_add_up_over_studies_as_mu_does(tmp_path: Path) -> None:
    budget = Budget(tmp_path, 8.0, 1e-5)
    for i in range(3):
        budget.charge(f"study {i}", "s", 2.0, 1e-5, 0.5)
        budget.charge(f"study {i}", "s", 2.0, 1e-5, 0.5)
    assert budget.spent == pytest.approx(epsilon_of(0.5 * 3**0.5, 1e-5))
    budget.charge("study 3", "s", 2.0, 1e-5, 0.5)
    assert budget.left() == pytest.approx(epsilon_of((mu_of(8.0, 1e-5) ** 2 - 4 * 0.5**2) ** 0.5, 1e-5))
    assert budget.left(2.0) == 0.0
    assert [charge.study for charge in budget.charges()] == [f"study {i}" for i in range(4)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: text + '{"time": "cut sho',
        lambda text: re.sub('"mu": [^}]*', '"mu": NaN', text),
    ],
    ids=["no end of line", "cut short", "not a number"],
)
def test_a_damaged_budget_file_is_refused_and_left_alone(tmp_path: Path, damage: Callable[[str], str]) -> None:
    budget, path = Budget(tmp_path, 8.0, 1e-5), tmp_path / "budget.jsonl"
    budget.charge("one", "s", 2.0, 1e-5, 0.5)
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is damaged; restore it from a backup"):
        budget.charge("two", "s", 2.0, 1e-5, 0.5)
    assert path.read_bytes() == before


def test_a_budget_file_may_be_a_link(tmp_path: Path) -> None:
    """For example to a volume of which backups are made."""
    link, target = tmp_path / "budget.jsonl", tmp_path / "elsewhere.jsonl"
    link.symlink_to(target)
    Budget(tmp_path, 8.0, 1e-5).charge("one", "s", 2.0, 1e-5, 0.5)
    assert link.is_symlink()
    assert json.loads(target.read_text())["study"] == "one"


def test_a_budget_file_that_was_removed_is_noticed(tmp_path: Path) -> None:
    study = private_study("newton")
    site = begun_site(tmp_path, study)
    site.answer(encode(release(study)))
    (site.folder / "budget.jsonl").unlink()
    with pytest.raises(RefusedBySiteError, match="ValueError"):
        site.answer(encode(messages.Hello(study=study.hash, protocol=PROTOCOL, dmtrl="")))


def test_a_site_may_want_more_privacy_than_the_study(tmp_path: Path) -> None:
    study = private_study("newton", epsilon=4.0)
    plain = decode(begun_site(tmp_path / "a", study).answer(encode(release(study))))
    strict = begun_site(tmp_path / "b", study, Policy("", "", parameters_per_row=1.0, epsilon_per_study=1.0))
    noisier = decode(strict.answer(encode(release(study))))
    assert noisier.std[0] / plain.std[0] == pytest.approx(cost_of(study.privacy, 4.0) / cost_of(study.privacy, 1.0))
    assert json.loads((strict.folder / "budget.jsonl").read_text())["epsilon"] == 1.0


def test_a_site_may_refuse_studies_without_noise(tmp_path: Path) -> None:
    from support.studies import clinic

    files = clinic_files(tmp_path)
    site = approved_site(tmp_path / "site", clinic(), "north", files["north"], Policy("", "", private_only=True))
    with pytest.raises(RefusedBySiteError, match="only studies that add noise"):
        site.answer(encode(messages.Hello(study=site.study.hash, protocol=PROTOCOL, dmtrl="")))


def test_the_approval_states_the_guarantee_and_the_mode(tmp_path: Path) -> None:
    study, files = private_study("rounds"), clinic_files(tmp_path)
    policy = Policy("north", str(files["north"]), epsilon_per_study=2.0)
    text = approval_text(study, policy, check_file(study, files["north"]), tmp_path)
    assert "is (2, 1e-05)-differentially private" in text
    assert "Mode 'rounds'" in text
    assert "no noise is added" not in text
    assert "folds" not in text
    assert "together: epsilon 8 at delta 1e-05; spent: 0; left for one more study: 8." in text
    write_policy(tmp_path, policy)
    assert read_policy(tmp_path) == policy


def test_the_command_approve_shows_the_budget_before_it_asks(tmp_path: Path) -> None:
    site = begun_site(tmp_path, private_study("newton", epsilon=4.0))
    site.answer(encode(release(site.study)))
    left = f"{math.floor(100 * Budget(site.folder, 8.0, 1e-5).left()) / 100:g}"

    def shown(text: str) -> str:
        (tmp_path / "study.toml").write_text(text)
        return shell("site", "approve", tmp_path / "study.toml", "--site", site.folder).output.split("Approve this")[0]

    spent = f"together: epsilon 8 at delta 1e-05; spent: 4; left for one more study: {left}."
    for text, words in (
        (private_text("newton", epsilon=4.0), "This study was charged before; running it again costs nothing more."),
        (private_text("newton", epsilon=5.0), "After this study, epsilon "),
        (private_text("newton", epsilon=float(left) - 0.01), "After this study, epsilon "),
        (private_text("newton", epsilon=float(left) + 0.01), "will refuse the study: it would exceed the budget."),
    ):
        assert spent in shown(text)
        assert words in shown(text)


def test_what_is_left_can_be_spent_and_no_more(tmp_path: Path) -> None:
    budget = Budget(tmp_path, 8.0, 1e-5)
    budget.charge("a study", "s", 4.0, 1e-5, mu_of(4.0, 1e-5))
    left = budget.left()
    budget.check("another study", mu_of(left, 1e-5))
    with pytest.raises(RefusedBySiteError, match="would exceed the privacy budget"):
        budget.check("another study", mu_of(left + 1e-3, 1e-5))


def test_a_damaged_budget_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "budget.jsonl").write_text('{"time": "now"}\n')
    with pytest.raises(ValueError, match=r"budget\.jsonl is damaged; restore it from a backup"):
        Budget(tmp_path, 8.0, 1e-5).charges()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("epsilon = 4.0\n", "", "epsilon is missing"),
        ("epsilon = 4.0", "epsilon = 0", "epsilon must be a positive number"),
        ("row_norm = 2.5", 'row_norm = "2"', "row_norm must be a positive number"),
        ('mode = "auto"', 'mode = "moments"', "is for the squared loss"),
        ('mode = "auto"', 'mode = "auto"\naggregation = "masked"', "cannot be combined with noise"),
        ("lambda = 0.03", "lambda = [0.03, 0.3]", "lambda must be one number"),
        ("range = [-4, 4]\n", "", "needs a range"),
        ("range = [-4, 4]", "range = [-4, inf]", "needs a range"),
        ('loss = "logistic"', 'loss = "squared_hinge"', "set slope"),
    ],
)
def test_bad_terms_are_refused_with_a_sentence(old: str, new: str, words: str) -> None:
    text = private_text()
    assert old in text
    with pytest.raises(StudyError, match=words):
        parse_study(text.replace(old, new, 1).encode())


CHILD = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from dmtrl.federation.protection.noise import site as releasing
from dmtrl.federation.simulate import simulate
from support.private_studies import private_study
from test_private_study import ALLOWED, begun_site, encode, release

folder = Path({folder!r})
if {where!r} == "rounds":
    def watch(event):
        if event.detail == "3 of 5":
            (folder / "waiting").touch()
            time.sleep(600)
    study = private_study("rounds", more="releases = 5")
    files = {{name: folder / (name + ".csv") for name in ("north", "south", "west")}}
    simulate(study, files, folder / "out", watch, policy=ALLOWED)
else:  # after the charge, before the release is stored
    def noise(shape):
        (folder / "waiting").touch()
        time.sleep(600)
    releasing.system_noise = noise
    study = private_study("newton")
    site = begun_site(folder, study)
    site.answer(encode(release(study)))
"""


def _kill_when_waiting(folder: Path, where: str) -> None:
    here = Path(__file__).resolve().parent
    code = CHILD.format(tests=str(here.parent.parent), folder=str(folder), where=where)
    process = subprocess.Popen([sys.executable, "-c", code], cwd=here)
    try:
        wait_for(lambda: alive(process) and (folder / "waiting").exists(), "the moment to kill it")
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL


@pytest.mark.faults
@pytest.mark.subprocess
def test_a_killed_and_resumed_run_spends_no_more_and_repeats_no_noise(tmp_path: Path) -> None:
    files = clinic_files(tmp_path)
    _kill_when_waiting(tmp_path, "rounds")
    study = private_study("rounds", more="releases = 5")
    stored = sorted((tmp_path / "out" / "sites").glob("*/private/*/*.message"))
    before = {path: path.read_bytes() for path in stored}
    assert len(before) == 3 * len(SITES)
    result = simulate(study, files, tmp_path / "out", policy=ALLOWED)
    assert all(path.read_bytes() == data for path, data in before.items())
    for site in SITES:
        folder = tmp_path / "out" / "sites" / site
        assert len(list(folder.glob("private/*/*.message"))) == 5
        assert Budget(folder, 8.0, 1e-5).spent == pytest.approx(4.0, rel=1e-6)
        assert len((folder / "budget.jsonl").read_bytes().splitlines()) == 1
    again = simulate(study, files, tmp_path / "out", policy=ALLOWED)
    np.testing.assert_array_equal(again.model.coef_, result.model.coef_)


@pytest.mark.faults
@pytest.mark.subprocess
def test_killed_between_the_charge_and_the_release(tmp_path: Path) -> None:
    _kill_when_waiting(tmp_path, "one release")
    site = Site(tmp_path / "site")
    assert not (site.folder / "private").exists()
    assert (site.folder / "budget.jsonl").exists()
    first = site.answer(encode(release(site.study)))
    assert len((site.folder / "budget.jsonl").read_bytes().splitlines()) == 1
    assert Site(site.folder).answer(encode(release(site.study))).encode() == first.encode()
