"""`dmtrl-lab reproduce`: records that survive a kill, experiments that show what they say, a page that opens."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.report.content import Text
from dmtrl_lab.cli.main import main
from dmtrl_lab.experiments import agreement, bounds, convergence, coupling, heart, relations, school, unbalanced
from dmtrl_lab.experiments.collection import Collection
from dmtrl_lab.experiments.curves import Spread, history_curves, rounds_to
from dmtrl_lab.experiments.experiment import Experiment, Record, Run
from dmtrl_lab.experiments.problems import load_problem, tasks_of
from dmtrl_lab.experiments.records import Store
from dmtrl_lab.experiments.reproduce import REPRODUCTION
from support.waiting import alive, wait_for

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.dictionaries(st.text(max_size=5), st.one_of(NUMBERS, st.text(max_size=9), st.lists(NUMBERS, max_size=3))))
def test_records_come_back_as_they_were(tmp_path_factory, figures) -> None:
    store = Store(tmp_path_factory.mktemp("records"))
    store.append(Record("one", {"seed": 1}, {"loss": "hinge"}, figures, 0.5))
    store.append(Record("two", {"seed": 1}, {}, {"array": np.arange(3), "tuple": (1, 2)}, 0.5))
    first, second = store.read().values()
    assert second.figures == {"array": [0, 1, 2], "tuple": [1, 2]}
    assert first.figures.keys() == figures.keys()
    assert first.settings == {"loss": "hinge"}
    for name, value in figures.items():
        assert first.figures[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6))


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_cut_line_is_dropped_and_its_run_done_again(tmp_path: Path, cut: int) -> None:
    store = Store(tmp_path)
    for seed in range(3):
        store.append(Record("one", {"seed": seed}, {}, {"value": seed}, 0.1))
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[:-cut])
    assert [record.params["seed"] for record in store.read().values()] == [0, 1]
    store.append(Record("one", {"seed": 2}, {}, {"value": 2}, 0.1))
    assert store.path.read_bytes() == whole


def test_a_line_that_is_no_record_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"colour": "red"}\n')
    with pytest.raises(ValueError, match="line 1 is not a record"):
        Store(tmp_path).read()


def _toy(measure) -> Experiment:
    runs = [Run({"seed": seed, "quick": True}, 1.0) for seed in range(4)]
    return Experiment("toy", "Toy", lambda quick: runs, measure, lambda records: [Text(str(len(records)))])


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    done: list[int] = []

    def measure(seed: int, quick: bool) -> dict[str, int]:
        if seed == 2 and len(done) == 2:
            raise KeyboardInterrupt
        done.append(seed)
        return {"value": seed}

    other = replace(_toy(lambda seed, quick: {}), name="other")
    toys = Collection("toys", "", {"toy": [_toy(measure)], "other": [other]})
    with pytest.raises(KeyboardInterrupt):
        toys.run("toy", True, tmp_path)
    shown = toys.run("other", True, tmp_path)
    assert len(shown.sections) == 1, "nothing is drawn from half an experiment"
    done.append(-1)  # so that the third run does not stop again
    assert [run.params["seed"] for _, run in toys.plan("toy", True, tmp_path).pending] == [2, 3]
    shown = toys.run("toy", True, tmp_path)
    assert done == [0, 1, -1, 2, 3]
    assert shown.missing == {}
    assert [section.items[0].text for section in shown.sections] == ["4", "4"]


def test_experiments_without_a_matching_run_are_not_drawn(tmp_path: Path) -> None:
    def first(records: Sequence[Record]) -> list[Text]:
        return [Text(str(records[0].params["seed"]))]

    toy = replace(_toy(lambda seed, quick: {}), items=first)
    named = replace(toy, name="named", runs=lambda quick: [Run({"seed": "seven", "quick": True}, 1.0)])
    some = Collection("toys", "", {"toy": [toy], "named": [named]}).only("all", "seven")
    assert [section.items[0].text for section in some.run("all", True, tmp_path).sections] == ["seven"]


def test_files_of_the_user_are_kept(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine.csv").write_text("1\n")
    Collection("toys", "", {"toy": [_toy(lambda seed, quick: {})]}).run("all", True, tmp_path)
    assert (tmp_path / "files" / "mine.csv").read_text() == "1\n"


def test_a_data_set_that_is_missing_stops_only_its_own_experiment(tmp_path: Path) -> None:
    def missing(seed: int, quick: bool) -> dict[str, int]:
        raise FileNotFoundError("school.npz was not found")

    lost, found = _toy(missing), Experiment("found", *list(vars(_toy(lambda seed, quick: {})).values())[1:])
    output = Collection("toys", "", {"toys": [lost, found]}).run("all", True, tmp_path)
    assert output.missing == {"toy": "school.npz was not found"}
    assert len(Store(tmp_path).read()) == 4


def test_every_experiment_has_runs_with_distinct_keys() -> None:
    everything = REPRODUCTION.experiments("all")
    assert {experiment.name for group in REPRODUCTION.groups.values() for experiment in group} == {
        e.name for e in everything
    }
    for quick in (True, False):
        keys = [e.key(run) for e in everything for run in e.runs(quick)]
        assert len(keys) == len(set(keys))
        json.dumps([dict(run.params) for e in everything for run in e.runs(quick)])


def test_curves_and_spreads() -> None:
    figures = {"round": [1, 2, 3], "gap": [0.5, 0.1, 0.01]}
    assert rounds_to(figures, "gap", 0.1) == 2
    assert rounds_to({"round": [1, 2, 3], "gap": [0.05, 0.2, 0.01]}, "gap", 0.1) == 3  # from then on, not once
    assert rounds_to(figures, "gap", 1e-3) == "> 3"
    assert f"{Spread([1.0, 3.0]):.1f}" == "2.0 ± 1.4"
    assert f"{Spread([1.0]):.1f}" == "1.0"
    after, before = history_curves(_history(3)), history_curves(_history(3), before=True)
    assert (after["round"], before["round"]) == ([1, 2, 3], [0, 1, 2])
    assert after["seconds"] == pytest.approx([0.1, 0.2, 0.3])
    assert before["seconds"] == pytest.approx([0.0, 0.1, 0.2])
    assert after["passes"] == pytest.approx([1, 2, 3])
    assert len(history_curves(_history(3000))["round"]) <= 1000
    assert history_curves(_history(3000))["round"][-1] == 3000


def _history(length: int):
    from dmtrl.solver.outcome import RoundRecord

    return [
        RoundRecord(k, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, "sdca", 1.0, False, 0, 0, 0.1) for k in range(length)
    ]


def test_explained_variance_by_hand() -> None:
    y, z = np.array([1.0, 3.0, 10.0, 14.0]), np.array([1.0, 2.0, 11.0, 12.0])
    found = school.scores(y, z, np.array([0, 0, 1, 1]))
    assert found["rmse"] == pytest.approx(np.sqrt(6 / 4))
    assert found["explained"] == pytest.approx(1 - np.var([0, 1, -1, 2]) / np.var(y))
    # about the schools' own means 2 and 12: squared distances 1, 1, 4, 4
    assert found["explained_within"] == pytest.approx(1 - 6 / 10)


def test_a_hospital_without_a_test_error_has_no_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [SimpleNamespace(site="a", error=0.25), SimpleNamespace(site="b", error=None)]
    result = SimpleNamespace(tasks=tasks, reg_lambda=1.0, common=0.0, relative_gap=0.0)
    monkeypatch.setattr(heart, "simulate", lambda *_, **__: result)
    hospital = heart.Hospital(["age"], np.ones((4, 1)), np.array([0, 1, 0, 1]), np.array([True, True, False, False]))
    assert heart._study_accuracy({"a": hospital, "b": hospital}, "", quick=True)[1] == {"a": 0.75}
    every = {name: {"cleveland": 0.5, "va": 0.7} for name in (heart.OURS, heart.BY_LOSS, heart.ALONE, heart.POOLED)}
    figures = {**every, "rows": dict.fromkeys(heart.HOSPITALS, 4), "lambda": 1.0, "common": 0.0}
    [_, table] = heart.items([Record("heart", {"split": heart.FLAMBY}, {}, figures, 1.0)])
    assert table.rows[0][1:6] == ["0.500", "-", "-", "0.700", "0.600"]


def test_errors_by_hand() -> None:
    task = load_problem("synthetic 1", quick=True)
    right = np.zeros((task.test.m, task.test.X.shape[1]))
    assert task.error(right) == pytest.approx(np.mean([(y > 0).mean() for _, y in tasks_of(task.test)]))


def test_relations_are_recovered_at_full_size() -> None:
    assert relations.measure(kind=1, seed=0, quick=False)["recovery"] >= 0.98


def test_every_allocation_has_about_one_step_per_row() -> None:
    data = unbalanced.unbalanced(load_problem("synthetic 1", quick=True).train)
    rows = np.diff(data.starts)
    assert rows.max() >= 20 * rows.min()
    from dmtrl.relationship.covariance import TaskCovariance

    for way in (unbalanced.ONE_H, unbalanced.BY_ROWS, unbalanced.BY_THEORY):
        steps = unbalanced.allocate_steps(way, data, TaskCovariance.identity(data.m))
        assert abs(steps.sum() - rows.sum()) <= data.m
    assert len(set(unbalanced.allocate_steps(unbalanced.ONE_H, data, TaskCovariance.identity(data.m)))) == 1


def test_steps_for_the_same_theta_grow_with_rows() -> None:
    """With even rows and one Sigma, H is n + stiffness times the same constant, so it grows with n."""
    from dmtrl.relationship.covariance import TaskCovariance
    from dmtrl_lab.theory import TaskFacts, local_theta

    data = unbalanced.unbalanced(load_problem("synthetic 1", quick=True).train)
    sigma = TaskCovariance.identity(data.m)
    steps = unbalanced.allocate_steps(unbalanced.BY_THEORY, data, sigma)
    rows = np.diff(data.starts)
    assert np.corrcoef(steps, rows)[0, 1] > 0.5
    step = sigma.paper_rho() * sigma.diagonal() / unbalanced.LAMBDA
    parts = zip(tasks_of(data), steps, step, strict=True)
    thetas = [local_theta(TaskFacts.of(unbalanced.LOSS, *rows), int(h), s) for rows, h, s in parts]
    assert max(thetas) - min(thetas) < 0.05  # the same Theta for all


@pytest.mark.data
def test_school_is_scaled_by_training_rows_alone(shared_data, monkeypatch: pytest.MonkeyPatch) -> None:

    from dmtrl.datasets import load_school
    from dmtrl_lab.experiments import problems

    school = load_school((shared_data / "school.npz").parent)
    changed = replace(school, X=school.X.copy(), y=school.y.copy())
    changed.X[school.splits[0][1]] *= 3.0
    changed.y[school.splits[0][1]] += 100.0
    found = []
    for data in (school, changed):
        monkeypatch.setattr(problems, "load_school", lambda data=data: data)
        found.append(load_problem("school", quick=True).train)
    np.testing.assert_array_equal(found[0].X, found[1].X)
    np.testing.assert_array_equal(found[0].y, found[1].y)


def test_other_settings_are_another_run(tmp_path: Path) -> None:
    toy = _toy(lambda seed, quick: {})
    Collection("toys", "", {"toy": [toy]}).run("all", True, tmp_path)
    other = replace(toy, settings={"reg_lambda": 0.1})
    pending = Collection("toys", "", {"toy": [toy], "other": [other]}).plan("all", True, tmp_path).pending
    assert [experiment for experiment, _ in pending] == [other] * 4


def smaller_gaps_with_larger_h(records: list[Record]) -> bool:
    """Return whether, for every lambda, a larger H has a smaller gap after the same number of rounds."""
    ends: dict[tuple[str, float], list[float]] = {}
    for method in convergence.SHARES:
        for record in records:
            if record.params["method"] == method:
                key = (record.params["problem"], record.params["reg_lambda"])
                ends.setdefault(key, []).append(float(np.median(record.figures["w_gap"][-5:])))
    return all(gaps == sorted(gaps, reverse=True) for gaps in ends.values())


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory, shared_data) -> Path:
    """Everything, the quick way, on the real data sets. Idle threads of BLAS would take the core of other tests."""
    for name in ("school.npz", "mnist.npz", "mds.npz", "wisdm.npz", "heart"):
        shared_data / name
    out = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch, single_threaded_blas():
        patch.setenv("DMTRL_DATA", str(shared_data.folder))
        result = CliRunner().invoke(main, ["reproduce", "all", "--quick", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert str(out / "index.html") in result.stdout
    return out


def _records(out: Path, experiment: str) -> list[Record]:
    return [record for record in Store(out).read().values() if record.experiment == experiment]


@pytest.mark.slow
@pytest.mark.data
class TestQuick:
    def test_records_say_how_they_were_made(self, quick_run: Path) -> None:
        assert REPRODUCTION.plan("all", True, quick_run).pending == []
        for record in Store(quick_run).read().values():
            assert record.versions["dmtrl"]
            assert "cores" in record.machine
            assert record.seconds > 0

    def test_related_tasks_converge_more_slowly(self, quick_run: Path) -> None:
        records = _records(quick_run, "coupling")
        ends = {(r.params["sigma"], r.params["problem"]): r.figures["w_gap"][-1] for r in records}
        for sigma in (coupling.LEARNING, coupling.FIXED):
            assert ends[sigma, "synthetic 2"] > ends[sigma, "synthetic 1"]

    def test_larger_h_needs_fewer_rounds(self, quick_run: Path) -> None:
        for problem in convergence.DATA:
            assert smaller_gaps_with_larger_h(_records(quick_run, f"convergence {problem}"))

    def test_distributed_and_centralised_end_together(self, quick_run: Path) -> None:
        for record in _records(quick_run, "agreement"):
            assert agreement.relative_difference(record.figures) <= 1e-4
            ends = {name: figures["objective"] for name, figures in record.figures.items()}
            assert ends[agreement.DEFAULT] <= ends[agreement.DMTRL] * (1 + 1e-3)

    def test_predictions_hold(self, quick_run: Path) -> None:
        for record in _records(quick_run, "bounds"):
            assert record.figures["predicted"] >= record.figures["measured"] >= 1
        assert {record.params["loss"] for record in _records(quick_run, "bounds")} == set(bounds.REGIMES)

    def test_the_alternation_stalls_and_the_default_does_not(self, quick_run: Path) -> None:
        gaps = {record.params["method"]: record.figures["relative_gap"] for record in _records(quick_run, "stall")}
        assert gaps["joint splitting (default)"] <= 1e-3 < 0.01 < gaps["paper, tiny epsilon"]

    def test_sharing_does_not_hurt(self, quick_run: Path) -> None:
        for name in ("mnist", "mds"):
            (record,) = _records(quick_run, name)
            assert record.figures["joint"]["error"] <= record.figures["single-task"]["error"] + 0.01

    def test_the_heart_study_beats_the_published_accuracy(self, quick_run: Path, tmp_path: Path, monkeypatch) -> None:
        """The record is stored, so it is shown without the data."""
        (record,) = _records(quick_run, "heart")
        assert record.figures["rows"] == {"cleveland": 303, "hungarian": 261, "switzerland": 46, "va": 130}
        Store(tmp_path).append(record)
        monkeypatch.setenv("DMTRL_DATA", str(tmp_path / "nothing"))
        result = CliRunner().invoke(main, ["reproduce", "heart", "--quick", "--out", str(tmp_path)])
        assert result.exit_code == 0, result.output
        rows = [line.strip("| ").split(" | ") for line in result.output.splitlines()]
        mean = {row[0]: row[5] for row in rows if len(row) > 5}
        assert float(mean["study simulate"]) >= 0.80
        assert float(mean["published: best federated strategy"]) == 0.732

    def test_drawing_again_computes_nothing(self, quick_run: Path) -> None:
        before = (quick_run / "records.jsonl").read_bytes()
        page = (quick_run / "index.html").read_text()
        assert REPRODUCTION.run("all", True, quick_run).missing == {}
        assert (quick_run / "records.jsonl").read_bytes() == before
        assert (quick_run / "index.html").read_text() == page

    def test_every_figure_and_table_is_a_file_too(self, quick_run: Path) -> None:
        kinds = {path.suffix for path in (quick_run / "files").iterdir()}
        assert kinds == {".svg", ".csv", ".md"}
        assert len(list((quick_run / "files").glob("*.svg"))) >= 14
        assert len(list((quick_run / "files").glob("*.csv"))) >= 9

    @pytest.mark.parametrize("width", [1280, 360])
    def test_the_page_opens_in_a_browser(self, quick_run: Path, browser, width: int) -> None:
        browser.open(quick_run / "index.html", width=width)
        browser.wait_for("return document.querySelectorAll('.js-plotly-plot .main-svg').length > 20", "the plots")
        assert browser.console() == []
        assert [r for r in browser.requests() if not r.startswith(("file:", "data:", "blob:", "about:"))] == []
        assert browser.run("return document.documentElement.scrollWidth") <= width
        sections = [element.text for element in browser.find_all("main h2, section h2")]
        assert any("stalls" in title for title in sections)


@pytest.mark.faults
@pytest.mark.subprocess
def test_killed_and_resumed(tmp_path: Path) -> None:
    """kill -9 in the middle of a real run; the next one does only what is missing."""
    command = [sys.executable, "-m", "dmtrl_lab.cli.main", "reproduce", "synthetic", "--quick", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    records = tmp_path / "records.jsonl"
    wait_for(lambda: alive(process) and records.exists() and records.read_bytes().count(b"\n") >= 2, "two records")
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "index.html").exists()
    kept = records.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    result = CliRunner().invoke(main, ["reproduce", "synthetic", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "are stored" in result.stderr
    assert records.read_bytes().startswith(kept)
    assert (tmp_path / "index.html").stat().st_size > 100_000


def test_missing_data_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMTRL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("DMTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DMTRL_OFFLINE", "1")
    result = CliRunner().invoke(main, ["reproduce", "mnist", "--quick", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "Left out: mnist. mnist.npz was not found" in result.stderr
    assert not (tmp_path / "out" / "index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["reproduce", "imagenet"], 2, "imagenet"),
        (["reproduce", "synthetic", "--quick", "--out", "{file}"], 1, "is a file; --out must name a folder"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], code: int, sentence: str) -> None:
    (tmp_path / "file").write_text("here")
    result = CliRunner().invoke(main, [word.format(file=tmp_path / "file") for word in arguments])
    assert result.exit_code == code
    assert sentence in result.stderr
    assert (tmp_path / "file").read_text() == "here"


def test_ctrl_c_ends_a_command_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Collection, "run", pressed)
    result = CliRunner().invoke(main, ["reproduce", "synthetic", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 130
    assert "interrupted; run the command again to continue" in result.stderr
    assert "Traceback" not in result.stderr
