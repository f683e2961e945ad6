"""Reading files: columns are the same in every format, and files that are not what their names say are rejected."""

import gzip
import sys
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import dump_svmlight_file

from dmtrl.tables import columns, find_files, nearest, open_files
from dmtrl.tables.cells import summarize_cells
from support.shell_data import run, shops, write


def test_csv_round_trip_of_text(tmp_path: Path) -> None:
    table = shops()
    for ending in (".csv", ".csv.gz", ".tsv", ".parquet", ".feather", ".arrow"):
        source = open_files([write(table, tmp_path / f"shops{ending}")])
        assert source.names == table.column_names
        found = source.read().columns
        for name in ("size", "price", "open", "sales"):
            expected = table.column(name).cast(pa.float64() if name != "open" else pa.uint8()).to_numpy().astype(float)
            np.testing.assert_array_equal(columns.numbers(found.column(name), name), expected, err_msg=ending)
        for name in ("shop", "colour", "remark"):
            assert columns.texts(found.column(name)).tolist() == table.column(name).to_pylist(), ending
        days = columns.dates(found.column("day"), "day")
        assert days.astype("datetime64[D]").tolist() == table.column("day").to_pylist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5", "-3e4", " 7 ", ""], "number"),
        (["1", "NA", "3"], "number"),
        (["True", "false"], "number"),
        (["inf", "1"], "number"),
        (["007", "012"], "text"),
        (["0", "0.5"], "number"),
        (["2021-01-31", "2020-02-29 10:30:00"], "date"),
        (["2021-02-31"], "text"),
        (["31.01.2021"], "date"),
        (["31.02.2021"], "text"),
        (["1,234"], "text"),
        (["a", "1"], "text"),
    ],
)
def test_kind_of_an_untyped_column(values: list[str], kind: str) -> None:
    assert summarize_cells(pa.chunked_array([values])).kind == kind
    assert columns.kind_of(pa.chunked_array([values])) == "text"


@pytest.mark.parametrize(
    ("array", "names"),
    [
        (pa.array([3, 1, None]), [3, 1]),
        (pa.array([3.0, 1.0, None]), [3, 1]),
        (pa.array(["3", "1", None]), [3, 1]),
        (pa.array(["003", "1", ""]), ["003", "1"]),
        (pa.array([0.5, 1.0, float("nan")]), ["0.5", "1"]),
        (pa.array([True, False, None]), ["true", "false"]),
        (pa.array([7, 1, None], pa.uint64()), [7, 1]),
        (pa.array([2**64 - 1, 1, None], pa.uint64()), ["18446744073709551615", "1"]),
    ],
)
def test_labels_are_whole_numbers_or_text(array: pa.Array, names: list[object]) -> None:
    found, missing = columns.labels(pa.chunked_array([array]), untyped=True)
    assert missing.tolist() == [False, False, True]
    assert found[:2].tolist() == names


def test_types_of_typed_files(tmp_path: Path) -> None:
    moments = [datetime(2020, 1, 31, 12), None]
    table = pa.table(
        {
            "category": pa.array(["a", None]).dictionary_encode(),
            "large": pa.array(["a", None], pa.large_string()),
            "decimal": pa.array([Decimal("1.25"), None], pa.decimal128(5, 2)),
            "small": pa.array([7, None], pa.int8()),
            "moment": pa.array(moments, pa.timestamp("ms", "Europe/Berlin")),
            "list": [[1], [2]],
        }
    )
    for ending in (".parquet", ".arrow"):
        found = open_files([write(table, tmp_path / f"a{ending}")]).read().columns
        kinds = {name: columns.kind_of(found.column(name)) for name in found.column_names}
        numbers = {"decimal": "number", "small": "number"}
        assert kinds == {"category": "text", "large": "text", **numbers, "moment": "date", "list": "nested"}
        assert columns.texts(found.column("category")).tolist() == ["a", None]
        assert columns.texts(found.column("large")).tolist() == ["a", None]
        assert columns.numbers(found.column("decimal"), "decimal")[0] == 1.25
        assert np.isnan(columns.numbers(found.column("small"), "small")[1])
        assert columns.dates(found.column("moment"), "moment").tolist() == moments


def test_without_pyarrow_the_install_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    result = run("fit", tmp_path / "a.csv", "--task", "a", "--target", "b", "-o", tmp_path / "m")
    assert result.exit_code == 1
    assert 'pip install "dmtrl[frames]"' in result.stderr


def test_quoted_missing_words_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('name,x\nNA,1\n"NA",2\n"",3\n,4\n', encoding="utf-8")
    table = open_files([tmp_path / "a.csv"]).read().columns
    assert columns.texts(table.column("name")).tolist() == [None, "NA", None, None]


def test_semicolons_bom_line_breaks_and_an_index_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('﻿;name;x\r\n0;"two\nlines";1\r\n1;ünder;2\r\n'.encode())
    source = open_files([tmp_path / "a.csv"])
    assert source.names == ["unnamed_0", "name", "x"]
    table = source.read().columns
    assert table.column("name").to_pylist() == ["two\nlines", "ünder"]
    assert columns.numbers(table.column("x"), "x").tolist() == [1, 2]
    (tmp_path / "b.csv").write_bytes(b"\n  \r\n\na,b\r\n1,2\r\n\r\n3,4\r\n")
    assert open_files([tmp_path / "b.csv"]).read().columns.to_pydict() == {"a": ["1", "3"], "b": ["2", "4"]}
    (tmp_path / "c.csv").write_text('"Last, first, title";"Age, years"\nx;1,5\n', encoding="utf-8")
    assert open_files([tmp_path / "c.csv"]).names == ["Last, first, title", "Age, years"]
    (tmp_path / "d.csv").write_text('Diameter 5";Length 6";Price, EUR\n1;2;3\n', encoding="utf-8")
    assert open_files([tmp_path / "d.csv"]).names == ['Diameter 5"', 'Length 6"', "Price, EUR"]
    (tmp_path / "e.csv").write_text('\t"Price, EUR"\n1\t2\n', encoding="utf-8")
    assert open_files([tmp_path / "e.csv"]).names == ["unnamed_0", "Price, EUR"]


def test_a_folder_by_key_and_a_folder_of_files(tmp_path: Path) -> None:
    table = shops(m=3, shuffled=False).drop_columns("shop")
    for i in range(3):
        write(table.slice(40 * i, 40), tmp_path / "hive" / f"shop=00{i + 1}" / "part-0.parquet")
        write(table.slice(40 * i, 40), tmp_path / "plain" / f"00{i + 1}.csv.gz")
    (tmp_path / "plain" / "_SUCCESS").touch()
    (tmp_path / "plain" / ".hidden.csv").touch()
    expected = [f"00{i + 1}" for i in range(3) for _ in range(40)]
    hive = open_files([tmp_path / "hive"])
    assert hive.is_untyped("shop")
    assert not hive.is_untyped("size")
    assert hive.read().columns.column("shop").to_pylist() == expected
    plain = open_files([tmp_path / "plain"]).with_file_names("shop")
    assert plain.read().columns.column("shop").to_pylist() == expected


def test_files_with_different_columns(tmp_path: Path) -> None:
    write(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "1.parquet")
    write(pa.table({"b": [3.5], "c": [1]}), tmp_path / "2.parquet")
    source = open_files([tmp_path / "1.parquet", tmp_path / "2.parquet"])
    lacking = {name: Path(file).name for name, file in source.partly_missing().items()}
    assert lacking == {"a": "2.parquet", "c": "1.parquet"}
    assert source.read().columns.to_pydict() == {"a": [1, 2, None], "b": ["x", "y", "3.5"], "c": [None, None, 1]}


def test_npz_and_libsvm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y, task = rng.normal(size=(30, 3)), rng.normal(size=30), np.repeat([4, 5, 6], 10)
    np.savez(tmp_path / "a.npz", X=X, y=y, task=task, feature_names=np.array(["u", "v", "w"]), other=np.ones(7))
    source = open_files([tmp_path / "a.npz"])
    assert source.names == ["u", "v", "w", "y", "task"]
    np.testing.assert_array_equal(source.read().columns.column("v").to_numpy(), X[:, 1])
    dump_svmlight_file(X, y, str(tmp_path / "a.svm"), zero_based=False, query_id=task)
    batch = open_files([tmp_path / "a.svm"]).read()
    assert batch.columns.column("qid").to_pylist() == task.tolist()
    np.testing.assert_allclose(batch.block.toarray()[:, 1:], X)


def test_libsvm_batches_join_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5)) * (rng.random((200, 5)) < 0.4)
    dump_svmlight_file(X, X[:, 0], str(tmp_path / "a.svm"))
    source = open_files([tmp_path / "a.svm"])
    monkeypatch.setattr("dmtrl.tables.arrays.PIECE", 500)
    pieces = list(source.batches(["label"], features=4))
    assert len(pieces) > 10
    np.testing.assert_allclose(np.vstack([piece.block.toarray() for piece in pieces]), X[:, :4])


def test_batches_report_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmtrl.tables.readers.BLOCK", 4096)
    monkeypatch.setattr("dmtrl.tables.readers.ROWS", 50)
    table = shops()
    for ending in (".csv", ".parquet", ".feather"):
        path = write(table, tmp_path / f"a{ending}")
        batches = list(open_files([path, path]).batches(["price"]))
        done = [batch.done for batch in batches]
        assert len(done) > 3
        assert done == sorted(done)
        assert done[-1] == 1.0
        assert sum(batch.columns.num_rows for batch in batches) == 2 * table.num_rows


def _refused(path: Path, match: str) -> None:
    with pytest.raises((ValueError, OSError), match=match):
        open_files([path]).read()


def test_files_whose_content_contradicts_their_extension(tmp_path: Path) -> None:
    table = shops()
    parquet = write(table, tmp_path / "a.parquet").read_bytes()
    feather = write(table, tmp_path / "a.feather").read_bytes()
    csv = write(table, tmp_path / "a.csv").read_bytes()
    wrong = {
        "empty.csv": (b"", "empty.csv is empty"),
        "blank.csv": (b"\n \n", "is empty"),
        "binary.csv": (b"\x00\x01\x02" * 50, "has the extension of a CSV file but is a binary file"),
        "parquet.csv": (parquet, "has the extension of a CSV file but is a Parquet file"),
        "text.parquet": (csv, "is not a Parquet file"),
        "cut.parquet": (parquet[: len(parquet) // 2], "cut.parquet cannot be read as parquet"),
        "cut.feather": (feather[: len(feather) // 2], "cut.feather cannot be read as arrow"),
        "cut.csv.gz": (gzip.compress(csv)[:-400], "cut.csv.gz"),
        "plain.csv.gz": (csv, "has the extension of a compressed CSV file but is plain text"),
        "latin.csv": ("a,b\n1,ü\n".encode("latin-1"), "UTF-8"),
        "ragged.csv": (b"a,b\n1,2\n3\n", "line 3 has 1 cell, but the first line has 2 columns"),
        "open.csv": (b'a,b\n1,"2\n' + b"3,4\n" * 800_000, "a quotation mark is not closed"),
        "twice.csv": (b"a,a\n1,2\n", "two columns named 'a'"),
        "cut.npz": (b"PK\x03\x04" + b"0" * 100, "cannot be read as npz"),
        "what.xlsx": (b"PK\x03\x04", "has an unsupported extension"),
    }
    for name, (content, match) in wrong.items():
        (tmp_path / name).write_bytes(content)
        _refused(tmp_path / name, match)
    _refused(tmp_path / "nowhere.csv", "there is no file")
    (tmp_path / "folder").mkdir()
    _refused(tmp_path / "folder", "no data file in the folder")
    with pytest.raises(ValueError, match=r"several formats \(csv, parquet\)"):
        find_files([tmp_path / "a.csv", tmp_path / "a.parquet"])


def test_nearest_names() -> None:
    assert nearest("scool", ["school", "score"]) == "school"
    assert nearest("School", ["school", "score"]) == "school"
    assert nearest("x", ["school", "score"]) is None
