"""Sources: wherever the rows lie, the worker that reads them for itself finds the bits that arrays would have given."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import Settings, SourcePlan, TaskData
from dmtrl.data.sources import TaskSource
from support.solving import solve_data

pa = pytest.importorskip("pyarrow")
from pyarrow import csv, dataset, parquet  # noqa: E402

COMMON: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1, "settings": Settings(tol=1e-4)}
RNG = np.random.default_rng(0)
X, TASK = RNG.normal(size=(400, 3)), RNG.integers(8, 13, size=400)
Y, WEIGHT = X @ [1.0, 2.0, 3.0] + 0.1 * TASK, RNG.random(400) + 0.5
TABLE = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "school": TASK, "y": Y, "w": WEIGHT})
COLUMNS = {"target": "y", "task": "school", "weights": "w"}


def load(task: int) -> tuple[np.ndarray, ...]:
    mine = task == TASK
    return X[mine], Y[mine], WEIGHT[mine]


def _csv(folder: Path) -> SourcePlan:
    csv.write_csv(TABLE, folder / "all.csv")
    return SourcePlan.from_files(folder / "all.csv", **COLUMNS)


def _parquet(folder: Path) -> SourcePlan:
    parquet.write_table(TABLE, folder / "all.parquet", row_group_size=50)
    return SourcePlan.from_files(folder / "all.parquet", **COLUMNS)


def _npz(folder: Path) -> SourcePlan:
    np.savez(folder / "all.npz", X=X, y=Y, school=TASK, w=WEIGHT, feature_names=["a", "b", "c"])
    return SourcePlan.from_files(folder / "all.npz", **COLUMNS)


def _several_files(folder: Path) -> SourcePlan:
    for i, start in enumerate(range(0, 400, 100)):
        parquet.write_table(TABLE.slice(start, 100), folder / f"{i}.parquet")
    return SourcePlan.from_files(folder, **COLUMNS)


def _by_task(folder: Path) -> SourcePlan:
    for task in np.unique(TASK):
        (folder / f"school={task}").mkdir()
        part = TABLE.filter(pa.array(task == TASK)).drop_columns("school")
        parquet.write_table(part, folder / f"school={task}" / "part.parquet")
    return SourcePlan.from_files(folder, **COLUMNS)


def _file_each(folder: Path) -> SourcePlan:
    for task in np.unique(TASK):
        csv.write_csv(TABLE.filter(pa.array(task == TASK)).drop_columns("school"), folder / f"{task}.csv")
    return SourcePlan.from_files(folder, target="y", weights="w")


def _archive_each(folder: Path) -> SourcePlan:
    for task in np.unique(TASK):
        mine = task == TASK
        np.savez_compressed(folder / f"{task}.npz", X=X[mine], y=Y[mine], w=WEIGHT[mine])
    return SourcePlan.from_files(folder, target="y", weights="w")


def _dataset(folder: Path) -> SourcePlan:
    dataset.write_dataset(TABLE, folder, format="parquet", partitioning=["school"], partitioning_flavor="hive")
    return SourcePlan.from_dataset(str(folder), **COLUMNS)


def _callable(folder: Path) -> SourcePlan:
    return SourcePlan.from_callable(load, list(range(8, 13)), work=np.bincount(TASK)[8:])


def _import_path(folder: Path) -> SourcePlan:
    return SourcePlan.from_callable(f"{__name__}:load", list(range(8, 13)), work=np.bincount(TASK)[8:])


PLANS = [_csv, _parquet, _npz, _several_files, _by_task, _file_each, _archive_each, _dataset, _callable, _import_path]


@pytest.mark.parametrize("make", PLANS)
def test_the_same_bits_as_from_arrays(make: Any, tmp_path: Path) -> None:
    plan, data = make(tmp_path), TaskData.from_long(X, Y, TASK, WEIGHT)
    assert [str(name) for name in plan.names] == [str(name) for name in data.names]
    for layout in ({"workers": 2}, {"workers": plan.m}, {"workers": 3, "shards": [2, 1, 3, 1, 1]}):
        here, there = solve_data(data, **layout, **COMMON), solve_data(plan, **layout, **COMMON)
        assert there.W.tobytes() == here.W.tobytes()


@pytest.mark.parametrize("make", PLANS)
def test_a_source_travels_light(make: Any, tmp_path: Path) -> None:
    for source in make(tmp_path).sources(2):
        travelled = pickle.dumps(source)
        assert len(travelled) < 3000  # 400 rows are 16,000 bytes
        assert pickle.loads(travelled).load().X.shape[1] == 3


def test_a_worker_opens_only_files_that_hold_its_tasks(tmp_path: Path) -> None:
    plan = _by_task(tmp_path)
    first, last = plan.sources(2)
    assert isinstance(first, TaskSource)
    assert isinstance(last, TaskSource)
    mine, others = ([unit.name for unit in source.units] for source in (first, last))
    assert mine + others == ["8", "9", "10", "11", "12"]
    for task in others:
        (tmp_path / f"school={task}" / "part.parquet").unlink()
    assert first.load().names == mine
    with pytest.raises(FileNotFoundError):
        last.load()


def test_classes_and_a_constant_column(tmp_path: Path) -> None:
    table = pa.table({"t": ["n", "s", "n", "s"], "kind": ["yes", "no", "no", "yes"], "x": [1.0, 2.0, 3.0, 4.0]})
    parquet.write_table(table, tmp_path / "a.parquet")
    plan = SourcePlan.from_files(tmp_path / "a.parquet", "kind", "t", positive="yes", constant=1.0)
    blocks = plan.sources(1)[0].load()
    assert blocks.y.tolist() == [1.0, -1.0, -1.0, 1.0]
    assert blocks.X.tolist() == [[1.0, 1.0], [3.0, 1.0], [2.0, 1.0], [4.0, 1.0]]


def test_row_numbers_of_pandas_are_no_feature(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    TABLE.to_pandas().iloc[::2].to_parquet(tmp_path / "a.parquet")
    plan = SourcePlan.from_files(tmp_path / "a.parquet", **COLUMNS)
    assert plan.sources(1)[0].load().X.shape == (200, 3)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"target": "z"}, "there is no column 'z'"),
        ({"task": "School"}, "there is no column 'School'; did you mean 'school'"),
        ({"features": ["a", "d"]}, "there is no column 'd'"),
        ({"features": []}, "no column is left for the features"),
    ],
)
def test_missing_columns(what: dict[str, Any], words: str, tmp_path: Path) -> None:
    parquet.write_table(TABLE, tmp_path / "all.parquet")
    with pytest.raises(ValueError, match=words):
        SourcePlan.from_files(tmp_path / "all.parquet", **(COLUMNS | what))
    with pytest.raises(ValueError, match=words):
        SourcePlan.from_dataset(str(tmp_path / "all.parquet"), **(COLUMNS | what))


def test_rows_without_a_task_or_a_number(tmp_path: Path) -> None:
    table = pa.table({"t": ["n", None], "y": [1.0, 2.0], "x": ["1", "two"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="column 't' is empty in row 2"):
        SourcePlan.from_files(tmp_path / "a.parquet", "y", "t")
    parquet.write_table(table.set_column(0, "t", pa.array(["n", "s"])), tmp_path / "a.parquet")
    plan = SourcePlan.from_files(tmp_path / "a.parquet", "y", "t")
    with pytest.raises(ValueError, match=r"column 'x' holds 'two' \(row 2\), which is not a number"):
        plan.sources(1)[0].load()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((load, []), "at least one name"),
        ((load, ["a", "a"]), "no name twice"),
        (("load", ["a"]), "a function or 'package.module:function'"),
        ((load, ["a", "b"], [1.0]), "one finite number for each of the 2 tasks"),
    ],
)
def test_invalid_plans_of_functions(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SourcePlan.from_callable(*arguments)


def test_a_function_that_returns_something_else() -> None:
    plan = SourcePlan.from_callable(lambda task: X, ["a"])
    with pytest.raises(ValueError, match=r"task 'a': the function must return \(X, y\)"):
        plan.sources(1)[0].load()
