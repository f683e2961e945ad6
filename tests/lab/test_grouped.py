"""`dmtrl-lab reproduce grouped` and `bench grouped`: tables by hand, peers that know groups, verdicts that are true."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.linear_model import LinearRegression

from dmtrl.report.content import Table, Text
from dmtrl_lab.baselines import grouped as methods
from dmtrl_lab.bench import grouped as bench
from dmtrl_lab.bench.suite import BENCHMARKS, FULL_BENCHMARKS
from dmtrl_lab.cli.main import main
from dmtrl_lab.experiments import grouped
from dmtrl_lab.experiments.experiment import Record
from dmtrl_lab.experiments.records import Store

INSTALLED = [name for name, method in methods.METHODS.items() if method.package.missing() is None]


def _rows(binary: bool = False, levels: float = 3.0, seed: int = 0) -> tuple[methods.GroupedRows, np.ndarray]:
    """Groups that differ by their levels, rows to predict from the same groups, and their targets."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(30), 12)
    X = np.column_stack([rng.standard_normal(len(group)), rng.standard_normal(30)[group]])
    score = X @ [1.0, 0.5] + levels * rng.standard_normal(30)[group]
    y = (score + rng.logistic(size=len(group)) > 0).astype(float) if binary else score + rng.standard_normal(len(group))
    test = np.arange(len(group)) % 3 == 0
    return methods.GroupedRows(X[~test], y[~test], group[~test], X[test], group[test], binary), y[test]


def test_columns_that_vary_within_groups() -> None:
    X = np.array([[1.0, 5.0, 0.0], [1.0, 6.0, 0.0], [2.0, 7.0, 0.0], [2.0, 7.0, 1.0]])
    assert methods.varying_columns(X, np.array([4, 4, 2, 2])).tolist() == [1, 2]
    assert methods.varying_columns(X, np.array([4, 2, 4, 2])).tolist() == [0, 1, 2]


def test_pooled_is_least_squares() -> None:
    rows, _ = _rows()
    expected = LinearRegression().fit(rows.X, rows.y).predict(rows.X_new)
    np.testing.assert_allclose(methods.METHODS[methods.POOLED].predict(rows), expected)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", [name for name in methods.METHODS if name != methods.POOLED])
def test_methods_that_know_groups_learn_their_levels(name: str, binary: bool) -> None:
    if reason := methods.METHODS[name].package.missing():
        pytest.skip(reason)
    rows, y = _rows(binary)
    error = {
        one: grouped.losses(y, methods.METHODS[one].predict(rows), binary).mean() for one in (name, methods.POOLED)
    }
    assert error[name] < 0.9 * error[methods.POOLED]


def test_gpboost_and_statsmodels_fit_the_same_model() -> None:
    pytest.importorskip("gpboost")
    pytest.importorskip("statsmodels")
    rows, _ = _rows()
    fitted = {name: bench.FIT[name](rows.X, rows.y, rows.group) for name in bench.PEERS}
    predicted = [bench.PREDICT[name](model, rows.X_new, rows.group_new) for name, model in fitted.items()]
    np.testing.assert_allclose(*predicted, atol=0.02)


def _write_tables(folder: Path) -> None:
    """Small tables with the names and columns of the quick version."""
    (folder / "grouped").mkdir(parents=True)
    rng = np.random.default_rng(1)
    for name in grouped.QUICK_TABLES:
        lines = ["task,y,kind,age,fold,task_fold"]
        for task in range(10):
            level = 2 * rng.standard_normal()
            for row in range(10):
                age, kind = rng.standard_normal(), "abc"[rng.integers(3)]
                y = level + age + (kind == "b") + rng.standard_normal()
                y = float(y > 0) if name in grouped.BINARY else y
                lines.append(f"t{task},{y},{kind},{age},{row % 5},{task % 5}")
        (folder / "grouped" / f"{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    _write_tables(folder)
    monkeypatch.setenv("DMTRL_DATA", str(folder))
    return folder


def test_a_table_is_read_as_numbers_and_split_without_looking_at_the_test_rows(tables: Path) -> None:
    table = grouped.read_table("sleepstudy")
    assert table.X.shape == (100, 3)  # age, then two of three levels of the text
    assert set(np.unique(table.X[:, 1:])) == {0.0, 1.0}
    assert not table.binary
    rows, y = table.split(grouped.KNOWN, 3)
    np.testing.assert_array_equal(y, table.y[3::5])
    np.testing.assert_allclose(rows.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(rows.X.std(axis=0), 1)
    rows, _ = table.split(grouped.NEW, 3)
    assert set(rows.group_new) == {3, 8}
    assert not set(rows.group) & set(rows.group_new)


def test_a_table_with_holes_is_refused(tables: Path) -> None:
    path = tables / "grouped" / "sleepstudy.csv"
    path.write_text(path.read_text() + "t0,1.0,,0.5,0,0\n")
    with pytest.raises(ValueError, match="missing values"):
        grouped.read_table("sleepstudy")


def test_losses_by_hand() -> None:
    np.testing.assert_allclose(grouped.losses(np.array([1.0, 2.0]), np.array([3.0, 2.0]), False), [4.0, 0.0])
    np.testing.assert_allclose(
        grouped.losses(np.array([1.0, 0.0]), np.array([0.25, 0.25]), True), [-np.log(0.25), -np.log(0.75)]
    )
    assert np.isfinite(grouped.losses(np.array([1.0, 0.0]), np.array([0.0, 1.0]), True)).all()


def _record(table: str, split: str, model: str, fold: int, **figures: object) -> Record:
    return Record("grouped", {"table": table, "split": split, "model": model, "fold": fold}, {}, figures, 1.0)


def _records(table: str, split: str, errors: dict[str, tuple[float, float]]) -> list[Record]:
    """Two folds of 10 and 30 rows."""
    return [
        _record(table, split, model, fold, error=error, rows=10 if fold == 0 else 30)
        for model, both in errors.items()
        for fold, error in enumerate(both)
    ]


def test_the_tables_by_hand() -> None:
    records = _records("radon", grouped.KNOWN, {"dmtrl": (1.0, 2.0), "lmm": (1.0, 2.0), "slopes": (1.5, 2.5)})
    records += _records("exam", grouped.KNOWN, {"dmtrl": (1.0, 2.1), "lmm": (1.0, 2.0), "slopes": (0.5, 1.5)})
    records += [_record("orthodont", grouped.KNOWN, "dmtrl", fold, refused="too few rows", rows=5) for fold in (0, 1)]
    records += _records("orthodont", grouped.KNOWN, {"lmm": (1.0, 1.0), "slopes": (1.0, 1.0)})
    records += _records("radon", grouped.NEW, {"dmtrl": (1.0, 2.015), "pooled": (1.0, 2.0), "lmm": (2.0, 3.0)})
    items = grouped.items(records)
    known, new = (item for item in items if isinstance(item, Table))
    rows = {row[0]: dict(zip(known.columns, row, strict=True)) for row in known.rows}
    # over rows: (10 * 1 + 30 * 2) / 40; over folds: the standard deviation of 1 and 2, over the root of 2
    assert rows["radon"]["dmtrl"] == "1.750 ± 0.500"
    assert (rows["radon"]["difference"], rows["radon"]["verdict"]) == ("+0.00% ± 0.00%", "level with lmm")
    # the difference to slopes is 0.5 and 0.6: 0.575 of 1.25, with a standard error of 0.05
    assert (rows["exam"]["difference"], rows["exam"]["verdict"]) == ("+46.00% ± 4.00%", "FAR BEHIND slopes")
    assert (rows["orthodont"]["dmtrl"], rows["orthodont"]["verdict"]) == ("refused", "refused")
    assert "Level or ahead: 1 of 3 tables" in known.caption
    assert new.rows[0][-1] == "level with pooled"
    assert "Refused on orthodont: too few rows" in [item.text for item in items if isinstance(item, Text)]


@pytest.mark.parametrize(
    ("difference", "split", "expected"),
    [
        (0.005, grouped.KNOWN, "level with"),
        (0.006, grouped.KNOWN, "behind"),
        (0.006, grouped.NEW, "level with"),
        (-0.006, grouped.KNOWN, "ahead of"),
        (0.021, grouped.NEW, "FAR BEHIND"),
    ],
)
def test_verdicts(difference: float, split: str, expected: str) -> None:
    assert grouped.verdict(difference, split) == expected


def test_the_default_estimators_come_first_and_have_no_parameters() -> None:
    assert next(iter(grouped.estimators().items())) == (grouped.OURS, {})
    for quick in (True, False):
        runs = [run.params for run in grouped.runs(quick)]
        first = {(run["table"], run["split"]): run["model"] for run in reversed(runs)}
        assert set(first.values()) == {grouped.OURS}
        assert {run["table"] for run in runs} == set(grouped.QUICK_TABLES if quick else grouped.TABLES)


def test_methods_that_are_not_installed_are_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "find_spec", lambda name: None if name == "gpboost" else object())
    models = {run.params["model"] for run in grouped.runs(True)}
    assert models == {*grouped.estimators(), methods.POOLED, methods.LGBM}
    items = grouped.items(_records("radon", grouped.KNOWN, {"dmtrl": (1.0, 2.0), "pooled": (1.0, 2.0)}))
    texts = [item.text for item in items if isinstance(item, Text)]
    assert "Left out: lmm (gpboost is not installed; pip install gpboost)." in texts
    assert bench.runs(True)[0].params["peers"] == [bench.STATSMODELS]


def test_the_quick_version_runs_and_draws(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(main, ["reproduce", "grouped", "--quick", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "Known tasks: rows are held out" in result.stdout
    assert "New tasks: whole tasks are held out" in result.stdout
    records = list(Store(out).read().values())
    assert len(records) == len(grouped.runs(True))
    assert {record.params["model"] for record in records} == {*grouped.estimators(), *INSTALLED}
    for record in records:
        assert record.figures["rows"] == 20
        if "refused" in record.figures:  # a search may choose no common part
            assert record.params["split"] == grouped.NEW, record.figures["refused"]
            assert "nothing that tasks share" in record.figures["refused"]
        else:
            assert 0 < record.figures["error"] < 20


def test_missing_tables_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMTRL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("DMTRL_CACHE", str(tmp_path / "cache"))
    result = CliRunner().invoke(main, ["reproduce", "grouped", "--quick", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "Left out: grouped. grouped/sleepstudy.csv was not found" in result.stderr


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "model", "split", "error"),
    [
        ("sleepstudy", methods.POOLED, grouped.NEW, 2467),
        ("sleepstudy", methods.LMM, grouped.KNOWN, 1071),
        ("sleepstudy", methods.SLOPES, grouped.KNOWN, 774.3),
        ("radon", methods.LMM, grouped.KNOWN, 0.5475),
        ("radon", methods.TREES, grouped.KNOWN, 0.5847),
        ("radon", methods.LGBM, grouped.KNOWN, 0.5896),
        ("contraception", methods.SLOPES, grouped.KNOWN, 0.6254),
    ],
)
def test_other_methods_have_the_errors_that_are_known(
    shared_data, monkeypatch: pytest.MonkeyPatch, name: str, model: str, split: str, error: float
) -> None:
    """Figures of the description of the data, which another program computed."""
    monkeypatch.setenv("DMTRL_DATA", str((shared_data / "grouped" / f"{name}.csv").parents[1]))
    if reason := methods.METHODS[model].package.missing():
        pytest.skip(reason)
    found = [grouped.measure(name, split, model, fold, False) for fold in range(grouped.FOLDS)]
    whole = grouped.Error(*(np.array([one[key] for one in found], dtype=float) for key in ("error", "rows")))
    assert whole.mean == pytest.approx(error, rel=2e-3)


def test_groups_have_the_sizes_and_the_noise_that_they_claim() -> None:
    (X, y, group), (_, _, same) = bench.make_groups(2000, 5, 4)
    assert X.shape == (10_000, 4)
    np.testing.assert_array_equal(np.bincount(group), 5)
    np.testing.assert_array_equal(group, same)
    means = np.bincount(group, y) / 5
    within = ((y - means[group]) ** 2).sum() / (len(y) - 2000)
    # noise, the shared function and deviations vary within a group, levels between groups
    assert bench.NOISE**2 < within < bench.NOISE**2 + 3
    assert means.var() > bench.LEVEL**2 / 2


def test_the_quick_benchmark_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bench", "grouped", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (record,) = Store(tmp_path).read().values()
    names = {bench.DEFAULT, bench.THREADS, *record.params["peers"]}
    assert set(record.figures["processor"]) == names
    assert record.figures["same_bits"]
    assert all(error < 4 for error in record.figures["error"].values())
    assert bench.QUICK_SIZE in result.stdout


def test_the_table_of_the_benchmark_by_hand() -> None:
    processor = {"default": [2.0, 4.0], "two threads": [2.0, 2.0], "GPBoost": [1.0, 2.0]}
    figures = {
        "processor": processor,
        "seconds": {**processor, "two threads": [1.5, 1.5]},
        "error": {"default": 1.25, "GPBoost": 1.5},
        "same_bits": True,
    }
    row = bench.table_row(Record("bench grouped", {"size": "500 x 6 x 50"}, {}, figures, 1.0))
    assert (row["default, s"], row["two threads, s"], row["GPBoost / default"]) == ("3", "1.5", "0.5 (0.5 to 0.5)")
    assert (row["test error, GPBoost"], row["statsmodels, s"]) == ("1.500", "")


def test_the_largest_size_is_for_full_runs_alone() -> None:
    sizes = [
        [run.params["size"] for run in suite.experiments("grouped")[0].runs(False)]
        for suite in (BENCHMARKS, FULL_BENCHMARKS)
    ]
    assert sizes == [list(bench.SIZES), [*bench.SIZES, *bench.LARGE]]
    result = CliRunner().invoke(main, ["bench", "grouped", "--quick", "--full"])
    assert result.exit_code == 2
