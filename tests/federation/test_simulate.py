"""Whole studies in one process: the answer is that of all rows together, with the same bits after every fault."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dmtrl
from dmtrl.engines.recovery import Lost
from dmtrl.exceptions import RefusedBySiteError, WorkerLostError
from dmtrl.federation.coordinator.results import StudyEvent, StudyResult
from dmtrl.federation.coordinator.run import run_study
from dmtrl.federation.simulate import LocalSites, simulate
from dmtrl.federation.site.approval import create_site
from dmtrl.federation.site.ledger import entries, verify
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.study.study_file import Study, parse_study
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.protocol.message import Message
from dmtrl.solver.checkpoint import Checkpoint
from dmtrl.tables.learning import Choices, learn
from support.shell_data import write
from support.studies import CLINIC, SITES, approved_sites, clinic, clinic_files, clinic_table

LOOSE = Policy("", "", parameters_per_row=1.0)


def study_with(**tables: str) -> Study:
    """The clinic study with additional lines in some of its tables."""
    text = CLINIC
    for table, lines in tables.items():
        if f"[{table}]" not in text:
            text = text.replace("[fit]", f"[{table}]\n\n[fit]")
        text = text.replace(f"[{table}]", f"[{table}]\n{lines}")
    return parse_study(text.encode())


def loosened(folders: Sequence[Path]) -> list[Path]:
    """Sites with few rows need a policy that allows more weights per row."""
    for folder in folders:
        path = folder / "policy.toml"
        path.write_text(path.read_text().replace("parameters_per_row = 0.33", "parameters_per_row = 1.0"))
    return list(folders)


def run(study: Study, carrier: Any, out: Path, **options: Any) -> StudyResult:
    with single_threaded_blas():
        return run_study(study, carrier, carrier.names, out, **options)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult]:
    out = tmp_path_factory.mktemp("simulated")
    return out, simulate(clinic(), clinic_files(out / "data"), out, policy=LOOSE)


def test_the_model_is_that_of_all_rows_together(simulated: tuple[Path, StudyResult]) -> None:
    table = pa.concat_tables([clinic_table(i).append_column("site", pa.array([SITES[i]] * 60)) for i in range(3)])
    table = table.select(["age", "dose", "ward", "day", "remark", "ill", "site"])
    prepared = learn(table, "site", "ill", choices=Choices(drop=["remark"]), fill="mean")
    expected = dmtrl.MTRLClassifierCV(
        lambdas=(0.3, 0.03), commons=(0.0, 1.0), owns=(0.0,), task_weight="equal", cv=3, random_state=0
    ).fit(prepared.transform(table), table.column("ill").to_numpy(), tasks=table.column("site").to_numpy())
    model = simulated[1].model
    assert model.tasks_.tolist() == list(SITES)
    assert model.classes_.tolist() == ["no", "yes"]
    assert (model.reg_lambda_, model.common_strength_) == (expected.reg_lambda_, expected.common_strength_)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.cv_results_.wrong, expected.cv_results_.wrong)


def test_the_files_are_written(simulated: tuple[Path, StudyResult]) -> None:
    out, result = simulated
    assert np.array_equal(dmtrl.load(out / "model.dmtrl").coef_, result.model.coef_)
    assert not list((out / "checkpoint").iterdir())
    for i, name in enumerate(SITES):
        folder = out / "sites" / name
        model = dmtrl.load(folder / "results" / "model.dmtrl")
        assert model.tasks_.tolist() == [name]
        assert np.array_equal(model.coef_[0], result.model.coef_[i])
        assert np.array_equal(model.intercept_, result.model.intercept_[i : i + 1])
        assert model.preparation_ == result.model.preparation_
        assert model.certificate_ == result.model.certificate_
        assert verify(folder / "ledger.jsonl") > 20
        left = {entry.name for entry in entries(folder / "ledger.jsonl")}
        assert left >= {"welcome", "cell_counts", "improved", "scores", "finished"}


def test_the_result_tells_rounded_rows_and_errors(simulated: tuple[Path, StudyResult]) -> None:
    out, result = simulated
    assert [(task.name, task.rows, task.error) for task in result.tasks] == [(name, 60, None) for name in SITES]
    assert all(task.cv_error is not None and task.cv_error < 0.4 for task in result.tasks)
    assert result.relative_gap <= 1e-3
    assert result.model.study_ == result.as_dict()
    assert (out / "result.json").exists()


def test_the_model_predicts_new_files(simulated: tuple[Path, StudyResult]) -> None:
    model = dmtrl.load(simulated[0] / "sites" / "south" / "results" / "model.dmtrl")
    table = clinic_table(1)
    predicted = model.predict(model.preparation_.transform(table), tasks=np.array(["south"] * 60))
    assert (predicted == table.column("ill").to_numpy()).mean() > 0.75


def test_a_site_that_comes_later_joins_the_model(simulated: tuple[Path, StudyResult]) -> None:
    model = dmtrl.load(simulated[0] / "model.dmtrl")
    late = clinic_table(3)
    added = model.add_task(model.preparation_.transform(late), late.column("ill").to_numpy(), "west2")
    assert model.tasks_.tolist() == [*SITES, "west2"]
    assert np.isfinite(added.certificate.relative_gap)


class Faulty(LocalSites):
    """Loses a site at some posts: its process is gone, and a new one starts from its folder."""

    def __init__(self, folders: Sequence[Path], faults: dict[int, str]):
        super().__init__(folders)
        self._faults, self.posts, self.lost = faults, 0, 0
        self.silent: set[int] = set()

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        self.posts += 1
        fault = self._faults.get(self.posts, "")
        try:
            worker, answer = super().fetch(timeout)
        except TimeoutError:
            assert timeout is not None, "no answer can arrive"
            time.sleep(timeout)
            raise
        if fault == "silent":
            self.silent.add(worker)
        if worker in self.silent:
            if answer.name == "alive":  # to the question whether it is alive
                return self.fetch(timeout)
            raise Lost(worker, "it does not reply")
        if fault == "lost":
            self.lost += 1
            raise Lost(worker, "its process is gone")
        if fault == "unreachable":
            self.lost += 1
            raise Lost(worker, "the network is down", maybe_alive=True)
        return worker, answer


def test_lost_sites_change_no_bit(simulated: tuple[Path, StudyResult], tmp_path: Path) -> None:
    study = clinic()
    folders = loosened(approved_sites(tmp_path / "sites", study, clinic_files(tmp_path)))
    faults = {2: "lost", 7: "unreachable", 20: "lost", 60: "lost", 61: "lost", 150: "unreachable", 300: "lost"}
    carrier = Faulty(folders, faults)
    result = run(study, carrier, tmp_path / "out")
    assert carrier.lost == len(faults)
    assert np.array_equal(result.model.coef_, simulated[1].model.coef_)
    assert np.array_equal(result.model.intercept_, simulated[1].model.intercept_)
    for folder in folders:
        verify(folder / "ledger.jsonl")


def test_the_order_of_the_sites_changes_no_bit(simulated: tuple[Path, StudyResult], tmp_path: Path) -> None:
    study = clinic()
    folders = loosened(approved_sites(tmp_path / "sites", study, clinic_files(tmp_path)))
    result = run(study, LocalSites(folders[::-1]), tmp_path / "out")
    assert np.array_equal(result.model.coef_, simulated[1].model.coef_)


@pytest.mark.parametrize("moment", [("choosing lambda", 25), ("fitting all rows", 3)])
def test_an_interrupted_study_resumes_with_the_same_bits(
    simulated: tuple[Path, StudyResult], tmp_path: Path, moment: tuple[str, int]
) -> None:
    study, out = clinic(), tmp_path / "out"
    folders = loosened(approved_sites(tmp_path / "sites", study, clinic_files(tmp_path)))
    seen = []

    def stop(event: StudyEvent) -> None:
        seen.append(event.stage)
        if seen.count(moment[0]) == moment[1] and event.stage == moment[0]:
            raise KeyboardInterrupt

    checkpoint = Checkpoint(out / "checkpoint", every_rounds=2)
    with pytest.raises(KeyboardInterrupt):
        run(study, LocalSites(folders), out, progress=stop, checkpoint=checkpoint)
    versions = sorted((out / "checkpoint").iterdir())
    assert {path.name for path in versions[-1].iterdir()} == {"coordinator.npz", "manifest.json"}
    for folder in folders:
        kept = folder / "run" / "checkpoint" / versions[-1].name
        assert [path.name.split("-")[0] for path in kept.iterdir()] == ["worker"], "dual variables stay at the site"
    stages = []
    again = LocalSites(folders)
    result = run(study, again, out, resume=True, checkpoint=checkpoint, progress=lambda e: stages.append(e.stage))
    assert np.array_equal(result.model.coef_, simulated[1].model.coef_)
    assert stages.count(moment[0]) < 200
    assert not (folders[0] / "run" / "checkpoint").exists(), "nothing is left after the end"


def test_nothing_of_the_data_is_in_what_leaves(tmp_path: Path) -> None:
    study = clinic()
    files = clinic_files(tmp_path)
    folders = loosened(approved_sites(tmp_path / "sites", study, files))
    sent: list[bytes] = []

    class Tap(LocalSites):
        def fetch(self, timeout: float | None) -> tuple[int, Message]:
            worker, answer = super().fetch(timeout)
            if worker == 0:
                sent.append(answer.encode())
            return worker, answer

    result = run(study, Tap(folders), tmp_path / "out")
    everything = b"".join(sent)
    table = clinic_table(0)
    assert any(result.model.cv_results_.weight[0, 0, 0, :1].tobytes() in message for message in sent), (
        "the search works"
    )
    for value in table.column("dose").to_pylist():
        assert np.float64(value).tobytes() not in everything
    X = result.model.preparation_.transform(table)
    coordinates = result.model.coordinates_
    for row in coordinates.rows(X):
        assert row[:3].tobytes() not in everything
    y = np.where(np.array(table.column("ill").to_pylist()) == "yes", 1.0, -1.0)
    assert y[:5].tobytes() not in everything
    assert b"rare" not in everything
    assert str(files["north"]).encode() not in everything


def test_a_site_that_stays_away_ends_the_study(tmp_path: Path) -> None:
    study = clinic()
    folders = loosened(approved_sites(tmp_path / "sites", study, clinic_files(tmp_path)))
    with pytest.raises(WorkerLostError, match="'south' did not respond within"):
        run(study, Faulty(folders, {2: "silent"}), tmp_path / "out", patience=0.3)
    with pytest.raises(WorkerLostError, match="'west' did not respond within"):
        run(study, Faulty(folders, {9: "silent"}), tmp_path / "out", patience=0.3)
    with pytest.raises(WorkerLostError, match="within"):
        run(study, Faulty(folders, {101: "silent"}), tmp_path / "out", patience=0.3)


@pytest.mark.parametrize("moment", [2, 101])
def test_a_study_goes_on_without_a_site_that_stays_away(tmp_path: Path, moment: int) -> None:
    study = study_with(limits='on_lost = "go_on"')
    files = clinic_files(tmp_path)
    folders = loosened(approved_sites(tmp_path / "sites", study, files))
    carrier = Faulty(folders, {moment: "silent"})
    result = run(study, carrier, tmp_path / "out", patience=0.3)
    gone = SITES[next(iter(carrier.silent))]
    assert result.lost == (gone,)
    assert len(result.sites) == 2
    rest = {name: path for name, path in files.items() if name != gone}
    alone = simulate(study, rest, tmp_path / "alone", policy=LOOSE)
    assert np.array_equal(result.model.coef_, alone.model.coef_), "as if it had never been there"


def test_too_few_sites_end_the_study(tmp_path: Path) -> None:
    study = study_with(limits='sites = 3\non_lost = "go_on"')
    files = clinic_files(tmp_path)
    folders = loosened(approved_sites(tmp_path / "sites", study, files))
    with pytest.raises(WorkerLostError):
        run(study, Faulty(folders, {2: "silent"}), tmp_path / "out", patience=0.3)
    with pytest.raises(ValueError, match="at least 3 sites, got 2"):
        run(study, LocalSites(folders[:2]), tmp_path / "out")


def test_the_rounds_that_a_study_announces_are_not_exceeded(tmp_path: Path) -> None:
    study = study_with(limits="rounds = 7")
    with pytest.raises(RefusedBySiteError, match="'improved' may leave this site at most 7 times"):
        simulate(study, clinic_files(tmp_path), tmp_path / "out", policy=LOOSE)
    left = list(entries(tmp_path / "out" / "sites" / "north" / "ledger.jsonl"))
    assert len([entry for entry in left if entry.name == "improved"]) == 7


def test_a_refusal_names_the_site_and_stops_the_study(tmp_path: Path) -> None:
    study = clinic()
    files = clinic_files(tmp_path)
    folders = loosened(approved_sites(tmp_path / "sites", study, files))
    create_site(folders[1], "south", files["south"], Policy("", "", parameters_per_row=1.0, most_rounds=4))
    with pytest.raises(RefusedBySiteError) as caught:
        run(study, LocalSites(folders), tmp_path / "out")
    assert str(caught.value) == "south: the message 'improved' may leave this site at most 4 times"
    assert not (tmp_path / "out" / "model.dmtrl").exists()
    (folders[0] / "approval.json").unlink()
    with pytest.raises(RefusedBySiteError, match="north: no study was approved here"):
        run(study, LocalSites(folders), tmp_path / "out")


def test_the_coordinator_may_get_a_summary_only_and_the_sites_everything(tmp_path: Path) -> None:
    study = study_with(results='coordinator = "summary"\nsites = "all"')
    result = simulate(study, clinic_files(tmp_path), tmp_path / "out", policy=LOOSE)
    assert result.model is None
    assert not (tmp_path / "out" / "model.dmtrl").exists()
    assert "coef" not in (tmp_path / "out" / "result.json").read_text()
    model = dmtrl.load(tmp_path / "out" / "sites" / "west" / "results" / "model.dmtrl")
    assert model.tasks_.tolist() == list(SITES)
    assert model.task_correlation_.shape == (3, 3)


def test_several_tasks_at_each_site_and_held_out_rows(tmp_path: Path) -> None:
    text = CLINIC.replace(
        'column = "ill"\nkind = "classification"\nnegative = ["no"]\npositive = ["yes"]',
        'column = "cost"\nkind = "regression"',
    ).replace('"logistic"', '"huber=2"')
    text = text.replace("[fit]", '[tasks]\nby = "wing"\nvalues = ["left", "right", "none"]\n\n[fit]\nheld_out = "test"')
    study = parse_study(text.encode())
    result = simulate(study, clinic_files(tmp_path), tmp_path / "out", policy=Policy("", "", parameters_per_row=2.0))
    names = [f"{site}: {wing}" for site in SITES for wing in ("left", "right")]
    assert [task.name for task in result.tasks] == names
    assert result.model.tasks_.tolist() == names
    model = dmtrl.load(tmp_path / "out" / "sites" / "north" / "results" / "model.dmtrl")
    assert model.tasks_.tolist() == names[:2]
    table = clinic_table(0)
    tasks = np.array([f"north: {wing}" for wing in table.column("wing").to_pylist()])
    residual = model.predict(model.preparation_.transform(table), tasks) - table.column("cost").to_numpy()
    held = table.column("test").to_numpy() == 1
    for task in result.tasks[:2]:
        mine = held & (tasks == task.name)
        assert task.error == pytest.approx(np.mean(residual[mine] ** 2))
        assert task.held_out_rows <= mine.sum()


def test_a_single_lambda_needs_no_cross_validation(tmp_path: Path) -> None:
    study = parse_study(
        CLINIC.replace("lambda = [0.3, 0.03]\ncommon = [0.0, 1.0]", "lambda = 0.1\ncommon = 0.5").encode()
    )
    result = simulate(study, clinic_files(tmp_path), tmp_path / "out", policy=LOOSE)
    assert (result.reg_lambda, result.common) == (0.1, 0.5)
    assert all(task.cv_error is None for task in result.tasks)
    left = [entry.name for entry in entries(tmp_path / "out" / "sites" / "north" / "ledger.jsonl")]
    assert "scores" not in left


def test_progress_is_told_in_order(tmp_path: Path) -> None:
    events: list[StudyEvent] = []
    simulate(clinic(), clinic_files(tmp_path), tmp_path / "out", events.append, LOOSE)
    stages = list(dict.fromkeys(event.stage for event in events))
    assert stages == [
        "contacting the sites",
        "adding up statistics",
        "choosing lambda",
        "fitting all rows",
        "sending results",
    ]
    assert all(event.sites == SITES for event in events)
    assert [event.gap for event in events if event.stage == "fitting all rows"][-1] <= 1e-3


def test_a_site_with_one_class_always_predicts_it(tmp_path: Path) -> None:
    files = clinic_files(tmp_path)
    table = clinic_table(1)
    files["south"] = write(table.filter(pa.array(np.array(table.column("ill").to_pylist()) == "yes")), files["south"])
    result = simulate(study_with(fit='held_out = "test"'), files, tmp_path / "out", policy=LOOSE)
    south = result.tasks[1]
    assert (south.name, south.single_class, south.cv_error, south.error) == ("south", True, None, 0.0)
    assert [task.single_class for task in result.tasks] == [False, True, False]
    assert not result.model.coef_[1].any()
    model = dmtrl.load(tmp_path / "out" / "sites" / "south" / "results" / "model.dmtrl")
    assert set(model.predict(model.preparation_.transform(table), np.array(["south"] * 60))) == {"yes"}
    # the two other sites share as if the third had only helped to scale the columns
    assert result.model.coef_[[0, 2]].any(axis=1).all()


def test_one_class_everywhere_is_an_error(tmp_path: Path) -> None:
    files = clinic_files(tmp_path)
    for i, name in enumerate(SITES):
        table = clinic_table(i)
        files[name] = write(table.filter(pa.array(np.array(table.column("ill").to_pylist()) == "yes")), files[name])
    with pytest.raises(ValueError, match="nothing to fit"):
        simulate(clinic(), files, tmp_path / "out", policy=LOOSE)
