"""Study files: what is read, what is refused and with which line, and drafts."""

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dmtrl.exceptions import InputError, StudyError
from dmtrl.federation.site.approval import create_site
from dmtrl.federation.study.study_file import parse_study, read_study
from support.shell_data import shops, write
from support.studies import CLINIC, clinic, clinic_table, draft


def test_a_study_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "clinic.toml"
    path.write_text(CLINIC)
    study = read_study(path)
    assert study.name == "clinic"
    assert [(column.name, column.kind) for column in study.used] == [
        ("age", "number"),
        ("dose", "number"),
        ("ward", "category"),
        ("day", "date"),
    ]
    assert study.columns[2].levels == ("a", "b", "c", "rare")
    assert study.fit.reg_lambda == (0.3, 0.03)
    assert study.class_names == ("no", "yes")
    assert study.task_names("north") == ["north"]
    assert study.limits.on_lost == "stop"


def test_the_hash_is_that_of_the_bytes() -> None:
    one, same, other = clinic(), clinic(), parse_study(CLINIC.encode() + b"\n")
    assert one.hash == same.hash
    assert one.hash != other.hash, "one byte more is another study"
    assert len(one.hash) == 64


BAD = [
    ("format = 1", "format = 2", 1, "format must be 1"),
    ('name = "clinic"', "name = clinic", 2, "this is not TOML"),
    ('name = "clinic"', 'name = "my clinic"', 2, "letters, digits"),
    ('column = "ill"', "", 4, "column is missing"),
    ('kind = "classification"', 'kind = "ranking"', 6, "must be 'classification' or 'regression'"),
    ('positive = ["yes"]', 'positive = ["no"]', 8, "both negative and positive"),
    ('positive = ["yes"]', "positive = [1]", 8, "list of texts"),
    ('loss = "logistic"', 'loss = "squared"', 11, "is for regression"),
    ('loss = "logistic"', 'loss = "logit"', 11, "there is no loss 'logit'"),
    ("lambda = [0.3, 0.03]", "lambda = [0.3, -1]", 12, "positive numbers"),
    ("common = [0.0, 1.0]", "common = -0.5", 13, "numbers of at least 0"),
    ("folds = 3", "folds = 1", 14, "at least 2"),
    ("folds = 3", "fold = 3", 14, "did you mean 'folds'?"),
    ("range = [0, 120]", "range = [120, 0]", 18, "[lowest, highest]"),
    ('levels = ["a", "b", "c", "rare"]', 'levels = ["a", "a"]', 25, "twice"),
    ('levels = ["a", "b", "c", "rare"]', "", 23, "a category needs levels"),
    ("range = [2020-01-01, 2022-12-31]", "", 27, "a date needs a range"),
    ('kind = "date"', 'kind = "moment"', 28, "must be 'number' or"),
    ("[columns.age]", "[columns.ill]", 16, "also used in [target]"),
    ("[fit]", '[privacy]\nmode = "gaussian"\n[fit]', 11, "mode must be 'none' or 'auto'"),
    ("[fit]", '[tasks]\nby = "wing"\n[fit]', 11, "needs the list values"),
    ("[fit]", '[results]\nsites = "none"\n[fit]', 11, "must be 'own' or 'all'"),
    ("[fit]", "[limits]\nsites = 0\n[fit]", 11, "at least 1"),
    ("[2020-01-01, 2022-12-31]", "[2022-12-31, 2020-01-01T10:00:00]", 29, "two dates in order"),
    ("[2020-01-01, 2022-12-31]", "[2022-12-31T10:00:00Z, 2020-01-01T10:00:00]", 29, "two dates in order"),
    ("[2020-01-01, 2022-12-31]", "[2020-01-01, 10:00:00]", 29, "two dates in order"),
    ("[2020-01-01, 2022-12-31]", "[2020-01-01, 5]", 29, "two dates in order"),
    ('loss = "logistic"', 'loss = "huber=x"', 11, "[fit] 'huber=x': a number such as huber=2 must follow the sign ="),
    ("[fit]", '[tasks]\nby = "ill"\nvalues = ["no", "yes"]\n[fit]', 11, "'ill' cannot also be the target"),
    ("folds = 3", 'held_out = "ill"', 14, "'ill' cannot also be the target"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), BAD)
def test_a_bad_study_file_is_refused_with_the_line(old: str, new: str, line: int, words: str) -> None:
    assert old in CLINIC
    with pytest.raises(StudyError) as caught:
        parse_study(CLINIC.replace(old, new, 1).encode(), "clinic.toml")
    assert caught.value.line == line
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"clinic.toml, line {line}: ")


def test_the_time_of_day_and_the_zone_of_a_range_do_not_matter() -> None:
    mixed = CLINIC.replace("[2020-01-01, 2022-12-31]", "[2020-01-01T10:00:00Z, 2022-12-31]")
    assert parse_study(mixed.encode()).columns == parse_study(CLINIC.encode()).columns


def test_a_study_without_columns_is_refused() -> None:
    with pytest.raises(StudyError, match="no column is used"):
        parse_study((CLINIC[: CLINIC.index("[columns.age]")] + '[columns.x]\nkind = "ignored"\n').encode())


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(StudyError, match="UTF-8"):
        parse_study(b"name = '\xff'")


def test_a_draft_has_the_kinds_of_the_columns(tmp_path: Path) -> None:
    notes: list[str] = []
    like = write(clinic_table(0), tmp_path / "north.csv")
    study = draft(like, "trial", "ill", drop=["wing"], held_out="test", notes=notes)
    kinds = {column.name: column.kind for column in study.columns}
    assert kinds == {
        "age": "number",
        "dose": "number",
        "ward": "category",
        "day": "date",
        "remark": "ignored",
        "wing": "ignored",
        "cost": "number",
    }
    assert any("remark" in note for note in notes)
    assert study.columns[2].levels == ("a", "b", "c", "rare")
    assert (study.target.negative, study.target.positive) == (("no",), ("yes",))
    assert study.fit.held_out == "test"
    assert study.columns[1].correlation is not None
    assert study.columns[1].correlation > 0.2
    again = parse_study(study.source)
    assert again == study


def test_a_draft_ignores_ids_and_keeps_the_tasks_of_a_column(tmp_path: Path) -> None:
    notes: list[str] = []
    study = draft(write(shops(), tmp_path / "shops.csv"), "trial", "sales", task="shop", notes=notes)
    kinds = {column.name: column.kind for column in study.columns}
    assert kinds["row_id"] == "ignored"
    assert kinds["remark"] == "ignored"
    assert study.tasks.values == ("001", "002", "003", "004", "005")
    assert study.target.kind == "regression"
    assert any("identifies rows" in note for note in notes)


ROLES: list[tuple[dict[str, Any], str]] = [
    ({"task": "ill"}, "'ill' is in both target and task; pass it to one of them"),
    ({"drop": ["ill"]}, "'ill' is in both"),
    ({"number": ["ill"]}, "'ill' is in both"),
    ({"held_out": "ill"}, "'ill' is in both"),
    ({"task": "wing", "drop": ["wing"]}, "'wing' is in both"),
    ({"task": "test", "held_out": "test"}, "'test' is in both"),
    ({"number": ["age"], "category": ["age"]}, "'age' is in both category and number"),
    ({"drop": ["age"], "category": ["age"]}, "'age' is in both drop and category"),
    ({"task": "site"}, "a column named 'site' cannot be the tasks"),
    ({"held_out": "wing"}, "'wing' of held_out must hold 1 .* here it holds 'left', 'right'"),
    ({"held_out": "dose"}, "'dose' of held_out must hold 1"),
    ({"held_out": "ward"}, "'ward' of held_out must hold 1 .* 'rare' and missing cells"),
]


@pytest.mark.parametrize(("options", "words"), ROLES)
def test_a_column_of_a_draft_has_one_role(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    table = clinic_table(0)
    like = write(table.append_column("site", table.column("wing")), tmp_path / "north.csv")
    with pytest.raises(InputError, match=words):
        draft(like, "trial", "ill", **options)
    draft(like, "trial", "ill", drop=["age", "age"], held_out="test", task="wing")


def test_a_draft_does_not_hold_the_lowest_and_highest_values(tmp_path: Path) -> None:
    notes: list[str] = []
    path = tmp_path / "values.csv"
    rows = [
        f"{29.5 + i},{0.0123 + i / 1000:.4f},{-1234567 - 1001 * i},2021-03-{i % 20 + 7:02d},{i % 7}.{i}"
        for i in range(40)
    ]
    path.write_text("age,small,large,day,y\n" + "\n".join(rows) + "\n")
    study = draft(path, "trial", "y", kind="regression", notes=notes)
    ranges = {column.name: column.range for column in study.columns}
    assert ranges["age"] == (20, 70)
    assert ranges["small"] == (0.01, 0.06)
    assert ranges["large"] == (-1280000, -1230000)
    assert ranges["day"] == (date(2021, 3, 1), date(2021, 3, 31))
    assert study.target.range == (0, 7)
    assert "0.0123" not in study.source.decode()
    assert any("the draft holds values of values.csv" in note and "read it" in note for note in notes)


def test_rare_levels_of_a_draft_are_reported(tmp_path: Path) -> None:
    notes: list[str] = []
    draft(write(clinic_table(0), tmp_path / "north.csv"), "trial", "ill", notes=notes)
    assert "column 'ward': fewer than 10 rows have the level 'rare'" in notes


def test_names_with_quotes_survive_a_draft(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text('"a ""b"".c\\d",y\n' + "".join(f"{i / 7:.3f},{i % 2}\n" for i in range(40)))
    study = draft(path, "odd", "y")
    assert [column.name for column in study.columns] == ['a "b".c\\d']


def test_characters_that_cannot_be_printed_survive_a_draft(tmp_path: Path) -> None:
    name, level = "remark\U000e0001", "a\tb\U000e0001"
    table = clinic_table(0).append_column(name, pa.array([level, "c"] * 30))
    study = draft(write(table, tmp_path / "a.parquet"), "a", "ill")
    assert [column.levels for column in study.columns if column.name == name] == [(level, "c")]
    data = tmp_path / "a\n\U000e0001.csv"
    assert create_site(tmp_path / "site", "north", data).data == str(data)


@pytest.mark.parametrize(("kind", "number"), [(pa.date32(), ()), (pa.string(), ("empty",)), (pa.float64(), ())])
def test_an_empty_column_is_ignored_in_a_draft(tmp_path: Path, kind: pa.DataType, number: tuple[str, ...]) -> None:
    notes: list[str] = []
    table = clinic_table(0).append_column("empty", pa.nulls(60, kind))
    study = draft(write(table, tmp_path / "a.parquet"), "a", "ill", number=number, notes=notes)
    assert [column.kind for column in study.columns if column.name == "empty"] == ["ignored"]
    assert "column 'empty' is empty here: ignored" in notes


def test_a_target_with_several_values_needs_a_positive_class(tmp_path: Path) -> None:
    path = tmp_path / "three.csv"
    path.write_text("x,y\n" + "".join(f"{i / 7:.3f},{'uvw'[i % 3]}\n" for i in range(40)))
    with pytest.raises(InputError, match="positive"):
        draft(path, "three", "y")
    study = draft(path, "three", "y", positive=["w"])
    assert study.target.negative == ("u", "v")


@pytest.mark.data
def test_the_heart_draft_asks_about_disease(shared_data: Path) -> None:
    like = shared_data / "heart" / "cleveland.csv"
    study = draft(like, "heart", "num", drop=["slope", "ca", "thal"])
    assert (study.target.negative, study.target.positive) == (("0",), ("1", "2", "3", "4"))
    assert {column.name for column in study.columns if column.kind == "category"} == {
        "sex",
        "cp",
        "fbs",
        "restecg",
        "exang",
    }
