"""Input of source plans: class labels, arrays of unequal length, task names and amounts of work."""

import zipfile
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dmtrl import SourcePlan
from dmtrl.data.sources import TaskSource
from dmtrl.exceptions import CellError
from dmtrl.tables import open_files

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402


def _csv(folder: Path, labels: list[str], name: str = "a.csv") -> Path:
    lines = [f"{'ns'[i % 2]},{i},{label}" for i, label in enumerate(labels)]
    (folder / name).write_text("\n".join(["t,x,kind", *lines]) + "\n")
    return folder / name


def _parquet(folder: Path, labels: Any) -> Path:
    n = len(labels)
    table = pa.table({"t": ["ns"[i % 2] for i in range(n)], "x": np.arange(float(n)), "kind": labels})
    parquet.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


def _signs(plan: SourcePlan) -> list[float]:
    """In the order of the rows, which x counts."""
    blocks = plan.sources(1)[0].load()
    return [float(y) for _, y in sorted(zip(blocks.X[:, 0], blocks.y, strict=True))]


@pytest.mark.parametrize(
    ("labels", "positive", "expected"),
    [
        (["yes", "no", "Yes", " yes"], "yes", [1, -1, -1, 1]),
        (["1.0", "0.0", "1.0"], 1, [1, -1, 1]),
        (["1.0", "0", "1", "1e0", "10"], 1.0, [1, -1, 1, 1, -1]),
        (["1.0", "0.0"], True, [1, -1]),
        (["True", "false", "true"], True, [1, -1, 1]),
        (["007", "7", "07"], "7", [-1, 1, -1]),  # codes are texts
        (["9007199254740993", "9007199254740992"], 9007199254740993, [1, -1]),
        (["-", "+"], "+", [-1, 1]),  # among texts this mark is a class
        (["none", "mild", "severe"], "severe", [-1, -1, 1]),
    ],
)
def test_a_class_is_found_however_its_file_writes_it(
    labels: list[str], positive: Any, expected: list[int], tmp_path: Path
) -> None:
    assert _signs(SourcePlan.from_files(_csv(tmp_path, labels), "kind", "t", positive=positive)) == expected


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (pa.array([1.0, 0.0, 1.0, 2.5]), 1),
        (pa.array([1, 0, 1, 2]), 1.0),
        (pa.array([True, False, True, False]), True),
        (pa.array(["NA", "DE", "NA", "FR"]), "NA"),  # who asks for it means a class
        (pa.array(["a", "b", "a", "c"]).dictionary_encode(), "a"),
    ],
)
def test_a_class_of_a_typed_column(labels: Any, positive: Any, tmp_path: Path) -> None:
    path = _parquet(tmp_path, labels)
    for plan in (
        SourcePlan.from_files(path, "kind", "t", positive=positive),
        SourcePlan.from_dataset(str(path), "kind", "t", positive=positive),
    ):
        assert _signs(plan) == [1, -1, 1, -1]


@pytest.mark.parametrize(
    "tasks",
    [
        pa.array(["a", "a ", "b", "b"]),
        pa.array(["a", " a", "b", "b"]).dictionary_encode(),
        pa.array([1, 1, 2, 2]),
        pa.array([0.1, 0.1, 2, 2], pa.float32()),
        pa.array([0.0, -0.0, 1.0, 1.0]),
        pa.array([date(2024, 1, 31)] * 2 + [date(2024, 2, 1)] * 2),
        pa.array([datetime(2024, 1, 31, 12)] * 2 + [datetime(2024, 2, 1)] * 2, pa.timestamp("us", "Europe/Berlin")),
    ],
)
def test_all_rows_of_a_task_are_read_whatever_its_type(tasks: Any, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"t": tasks, "x": np.arange(4.0), "y": np.arange(4.0)}), tmp_path / "a.parquet")
    for plan in (
        SourcePlan.from_files(tmp_path / "a.parquet", "y", "t"),
        SourcePlan.from_dataset(str(tmp_path / "a.parquet"), "y", "t"),
    ):
        assert [source.load().y.tolist() for source in plan.sources(2)] == [[0, 1], [2, 3]]


def test_files_that_write_a_class_in_two_ways(tmp_path: Path) -> None:
    _csv(tmp_path, ["1", "0"], "a.csv")
    _csv(tmp_path, ["0.0", "1.0"], "b.csv")
    plan = SourcePlan.from_files(tmp_path, "kind", "t", positive=1)
    blocks = plan.sources(1)[0].load()
    assert blocks.names == ["n", "s"]
    assert blocks.y.tolist() == [1, -1, -1, 1]  # n: 1, 0.0; s: 0, 1.0


@pytest.mark.parametrize(
    ("labels", "positive", "words"),
    [
        (["yes", '""', "no", "NA", "Yes"], "yes", r"task 's': the target 'kind' holds '' \(line 3\)"),
        (["yes", "no", "NA"], "yes", r"task 'n': the target 'kind' holds '' \(line 4\)"),
        (["yes", "no", '"NA"'], "yes", r"task 'n': the target 'kind' holds 'NA' \(line 4\)"),
        (["1", "0", "1", "?"], 1, r"task 's': the target 'kind' holds '\?' \(line 5\)"),
    ],
)
def test_a_label_that_is_missing_is_refused(labels: list[str], positive: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(CellError, match=words):
        SourcePlan.from_files(_csv(tmp_path, labels), "kind", "t", positive=positive)


def test_the_file_of_a_missing_label_is_named(tmp_path: Path) -> None:
    _csv(tmp_path, ["yes", "no", "no"], "a.csv")
    _csv(tmp_path, ["yes", ""], "b.csv")
    with pytest.raises(CellError, match=r"task 's'.*\(line 3 of .*b\.csv\)"):
        SourcePlan.from_files(tmp_path, "kind", "t", positive="yes")


@pytest.mark.parametrize("labels", [pa.array(["yes", "no", None]), pa.array([1.0, 0.0, float("nan")])])
def test_a_null_is_no_class(labels: Any, tmp_path: Path) -> None:
    path, positive = _parquet(tmp_path, labels), labels[0].as_py()
    words = r"task 'n': the target 'kind' holds '' \(row 3\), which is not a class"
    with pytest.raises(CellError, match=words):
        SourcePlan.from_files(path, "kind", "t", positive=positive)
    with pytest.raises(CellError, match=words):
        SourcePlan.from_dataset(str(path), "kind", "t", positive=positive)


def test_a_label_that_went_missing_after_the_plan_was_made(tmp_path: Path) -> None:
    plan = SourcePlan.from_files(_csv(tmp_path, ["yes", "no"]), "kind", "t", positive="yes")
    _csv(tmp_path, ["yes", ""])
    with pytest.raises(CellError, match=r"the target 'kind' holds '' \(line 3\)"):
        plan.sources(1)[0].load()


@pytest.mark.parametrize(
    ("labels", "positive", "words"),
    [
        (["yes", "no"], "Yes", "the target 'kind' is never 'Yes'; did you mean 'yes'? its values are 'no', 'yes'"),
        (["1.0", "0.0"], 2, "is never '2'; its values are '0.0', '1.0'"),
        (["yes", "no"], 1, "is never '1'; its values are 'no', 'yes'"),
        ([f"c{i:02}" for i in range(30)], "zebra", "'c19' and 10 more"),
    ],
)
def test_a_class_that_never_occurs(labels: list[str], positive: Any, words: str, tmp_path: Path) -> None:
    path = _csv(tmp_path, labels)
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        SourcePlan.from_files(path, "kind", "t", positive=positive)
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        SourcePlan.from_dataset(str(_parquet(tmp_path, labels)), "kind", "t", positive=positive)


ROWS = np.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((ROWS, np.ones(5)), r"X \(6, 2\), y \(5,\)"),
        ((ROWS[:5], np.ones(6)), r"X \(5, 2\), y \(6,\)"),
        ((ROWS, np.ones(6), np.ones(7)), r"X \(6, 2\), y \(6,\), sample_weight \(7,\)"),
        ((sparse.csr_matrix(ROWS), np.ones(7)), r"X \(6, 2\), y \(7,\)"),
        ((ROWS, np.ones(6), None, np.ones(7)), r"X \(6, 2\), y \(6,\), offset \(7,\)"),
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_parts_of_different_lengths(parts: tuple[Any, ...], words: str, shards: int) -> None:
    plan = SourcePlan.from_callable(lambda task: parts, ["west"])
    for source in plan.sources(shards, shards):
        with pytest.raises(ValueError, match=rf"task 'west': .* must have the same number of rows; got {words}"):
            source.load()


@pytest.mark.parametrize(
    "tasks",
    [[1, "a"], [(1, 2), (3, 4)], [(1, 2), (3,)], [None, "a"], ["", 0, 1.5, ("x", None)], np.array([3, 5])],
    ids=str,
)
def test_a_function_hears_the_names_as_they_were_given(tasks: Any) -> None:
    heard: list[Any] = []

    def load(task: Any) -> tuple[np.ndarray, np.ndarray]:
        heard.append(task)
        return ROWS, np.ones(6)

    plan = SourcePlan.from_callable(load, tasks)
    assert plan.m == len(tasks)
    assert [source.load().names for source in plan.sources(1)] == [[str(task) for task in tasks]]
    assert heard == list(tasks)
    assert not any(isinstance(task, np.generic) for task in heard)


def _shares(work: list[float], workers: int) -> list[int]:
    sources = SourcePlan.from_callable("package.module:load", range(len(work)), work).sources(workers)
    shares = []
    for source in sources:
        assert isinstance(source, TaskSource)
        shares.append(len(source.units))
    return shares


def test_only_proportions_of_work_count() -> None:
    for work in ([1.0] * 10, [1.0, 5.0, 2.0, 2.0, 9.0, 1.0], [0.0, 1.0, 1.0, 0.0, 2.0]):
        shares = _shares(work, 4)
        assert len(shares) > 1
        for scale in (2.0**-40, 2.0**-7, 2.0**30):  # powers of two, so that nothing is rounded
            assert _shares([scale * w for w in work], 4) == shares
    assert max(_shares([0.01] * 10, 4)) <= 3


@pytest.mark.parametrize("work", [[1.0, np.inf], [1.0, np.nan], [1.0, -1.0], [0.0, 0.0], [1.0], [[1.0, 1.0]]])
def test_work_that_cannot_be(work: Any) -> None:
    with pytest.raises(ValueError, match="work must hold one finite number for each of the 2 tasks"):
        SourcePlan.from_callable("package.module:load", ["a", "b"], work)


def _spoil(path: Path, member: str) -> None:
    """Other bytes in the middle of one array of an archive."""
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(member)
    with open(path, "rb+") as file:
        file.seek(entry.header_offset + entry.compress_size // 2)
        file.write(b"\xff" * 200)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_plan_of_an_archive_does_not_read_its_rows(save: Any, tmp_path: Path) -> None:
    """Its X is damaged behind the header, which nobody sees who does not read it."""
    path, rng = tmp_path / "a.npz", np.random.default_rng(0)
    save(path, X=rng.normal(size=(3000, 40)), y=np.arange(3000) % 2, t=np.repeat(["a", "b", "c"], 1000))
    whole = SourcePlan.from_files(path, "y", "t", positive=1)
    assert whole.sources(1)[0].load().X.shape == (3000, 40)
    _spoil(path, "X.npy")
    plan = SourcePlan.from_files(path, "y", "t", positive=1)
    assert (plan.names.tolist(), plan.work.tolist()) == (whole.names.tolist(), whole.work.tolist())
    assert plan.work.tolist() == [1000 * 41.0] * 3
    with pytest.raises(ValueError, match=r"a\.npz cannot be read as npz: "):
        plan.sources(1)[0].load()
    _spoil(path, "t.npy")
    with pytest.raises(ValueError, match=r"a\.npz cannot be read as npz: "):
        SourcePlan.from_files(path, "y", "t", positive=1)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.ones((2, 2))}, "needs a two-dimensional array of numbers named X; it holds x, y$"),
        ({"X": np.ones(2)}, "needs a two-dimensional array of numbers named X; it holds y$"),
        ({"X": np.array([["a", "b"], ["c", "d"]])}, "needs a two-dimensional array of numbers named X"),
        ({"X": np.ones((0, 2))}, "has columns but no rows"),
        (
            {"X": np.ones((2, 2)), "t": np.array(["a", None])},
            "read as npz: its array 't' holds Python objects",
        ),
    ],
)
def test_archives_that_cannot_be(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays, y=np.ones(2))
    with pytest.raises(ValueError, match=words):
        SourcePlan.from_files(tmp_path / "a.npz", "y")


def test_what_is_no_column_of_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    strange = np.zeros(3, dtype=[("μέγεθος", float)])  # whose header is of a third kind
    with pytest.warns(UserWarning, match="can only be read by"):
        np.savez(path, X=np.ones((3, 2)), y=np.ones(3), more=np.ones(4), strange=strange, feature_names=["a", "b", "c"])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "no array")
    assert open_files([path]).names == ["x0", "x1", "y", "feature_names"]
