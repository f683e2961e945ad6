"""Federated preparation: it equals what `learn` finds on the rows of all sites together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dmtrl import MTRLClassifier
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.site.data_check import check_file
from dmtrl.federation.study import preparation as federated
from dmtrl.federation.study.study_file import Study, parse_study
from dmtrl.protocol.study import Begin
from dmtrl.tables.learning import Choices, learn
from dmtrl.tables.preparation import Category, Date, Dropped, Number, Preparation
from support.shell_data import write
from support.studies import CLINIC, SITES, clinic, clinic_files, clinic_table


def tables_of(study: Study, files: dict[str, Path]) -> list[tuple[Any, np.ndarray]]:
    """The rows of each site, as its Site sees them."""
    found = []
    for name in sorted(files):
        data = check_file(study, files[name]).data
        assert data is not None
        found.append((data.table.take(data.train), data.y[data.train]))
    return found


def prepare(study: Study, tables: list[tuple[Any, np.ndarray]]) -> Preparation:
    rows = sum(len(y) for _, y in tables)
    counts = [federated.cell_counts(study, table) for table, _ in tables]
    spreads = [federated.spread(study, table, federated.means_of(counts)) for table, _ in tables]
    return federated.prepare(study, rows, counts, spreads)


def union(rows: int = 60) -> pa.Table:
    parts = [clinic_table(i, rows).append_column("site", pa.array([SITES[i]] * rows)) for i in range(3)]
    return pa.concat_tables(parts).select(["age", "dose", "ward", "day", "remark", "ill", "site"])


def same_column(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Number):
        assert (one.name, one.flagged) == (other.name, other.flagged)
        np.testing.assert_allclose([one.fill, one.mean, one.scale], [other.fill, other.mean, other.scale], rtol=1e-12)
    else:
        assert one == other


def test_numbers_and_categories_equal_those_of_all_rows(tmp_path: Path) -> None:
    study = clinic()
    prepared = prepare(study, tables_of(study, clinic_files(tmp_path)))
    expected = learn(union(), "site", "ill", choices=Choices(drop=["remark"]), fill="mean")
    assert [column.name for column in prepared.columns] == [column.name for column in expected.columns]
    for one, other in zip(prepared.columns, expected.columns, strict=True):
        if not isinstance(one, Date):
            same_column(one, other)
    ward = prepared.columns[2]
    assert isinstance(ward, Category)
    assert "rare" in ward.categories, "three rows in all are enough, though each site has only one"
    assert prepared.columns[4] == Dropped("remark", "as requested")


def test_dates_give_the_same_features_as_on_all_rows(tmp_path: Path) -> None:
    study = clinic()
    prepared = prepare(study, tables_of(study, clinic_files(tmp_path)))
    expected = learn(union(), "site", "ill", choices=Choices(drop=["remark"]), fill="mean")
    assert prepared.feature_names == expected.feature_names
    table = union()
    # days are counted from the range of the study instead of the first day, which scaling undoes
    np.testing.assert_allclose(prepared.transform(table), expected.transform(table), atol=1e-12)


def test_columns_without_holes_equal_the_default_of_fit(tmp_path: Path) -> None:
    study = clinic()
    prepared = prepare(study, tables_of(study, clinic_files(tmp_path)))
    default = learn(union(), "site", "ill", choices=Choices(drop=["remark"]))
    dose, theirs = prepared.columns[1], default.columns[1]
    assert isinstance(dose, Number)
    assert isinstance(theirs, Number)
    same_column(replace(dose, fill=theirs.fill), theirs)  # no cell is filled
    same_column(prepared.columns[2], default.columns[2])


def test_coordinates_equal_those_of_the_estimator(tmp_path: Path) -> None:
    study = clinic()
    tables = tables_of(study, clinic_files(tmp_path))
    prepared, rows = prepare(study, tables), sum(len(y) for _, y in tables)
    parts = [(prepared.transform(table), y) for table, y in tables]
    centre, y_centre = federated.centres_of(study, rows, [federated.feature_sums(X, y) for X, y in parts])
    lengths = [federated.norms(X, y, centre, y_centre) for X, y in parts]
    found = federated.coordinates_of(rows, centre, y_centre, lengths)
    X, y = np.vstack([X for X, _ in parts]), np.concatenate([y for _, y in parts])
    tasks = np.repeat(SITES, [len(y) for _, y in parts])
    model = MTRLClassifier(reg_lambda=1.0, tol=0.1).fit(X, y, tasks=tasks)
    np.testing.assert_allclose(found.x_centre, model.coordinates_.x_centre, atol=1e-13)
    np.testing.assert_allclose(found.rows(X), model.coordinates_.rows(X), rtol=1e-12, atol=1e-13)
    assert (found.y_centre, found.y_scale) == (model.coordinates_.y_centre, model.coordinates_.y_scale)
    square = federated.mean_square(rows, found, lengths)
    assert square == pytest.approx(np.mean((model.coordinates_.rows(X) ** 2).sum(axis=1)))
    text = federated.coordinates_to_json(found)
    begin = Begin(study="", preparation="", coordinates=text, x_centre=found.x_centre, numbers=np.zeros(0))
    assert vars(federated.coordinates_from(begin)) == vars(found)


def test_the_target_of_a_regression_is_centred(tmp_path: Path) -> None:
    study = regression()
    tables = tables_of(study, clinic_files(tmp_path))
    prepared, rows = prepare(study, tables), sum(len(y) for _, y in tables)
    sums = [federated.feature_sums(prepared.transform(table), y) for table, y in tables]
    assert federated.centres_of(study, rows, sums)[1] == pytest.approx(np.mean(np.concatenate([y for _, y in tables])))


def regression() -> Study:
    text = CLINIC.replace('column = "ill"\nkind = "classification"\nnegative = ["no"]\npositive = ["yes"]',
                          'column = "cost"\nkind = "regression"').replace('"logistic"', '"squared"')  # fmt: skip
    return parse_study(text.encode())


def test_a_column_that_never_varies_or_is_empty_is_dropped(tmp_path: Path) -> None:
    study = clinic()
    files = {}
    for i, name in enumerate(SITES):
        table = clinic_table(i)
        table = table.set_column(0, "age", pa.nulls(60, pa.float64()))
        table = table.set_column(1, "dose", pa.array(np.full(60, 0.1)))
        files[name] = write(table, tmp_path / f"{name}.csv")
    prepared = prepare(study, tables_of(study, files))
    assert prepared.columns[0] == Dropped("age", "empty")
    assert prepared.columns[1] == Dropped("dose", "always 0.1")


def test_other_values_of_a_category_share_a_feature(tmp_path: Path) -> None:
    study = parse_study(
        CLINIC.replace('levels = ["a", "b", "c", "rare"]', 'levels = ["a", "b"]\nother = true').encode()
    )
    prepared = prepare(study, tables_of(study, clinic_files(tmp_path)))
    ward = prepared.columns[2]
    assert ward == Category("ward", ("a", "b", None), True)


def test_the_sum_does_not_depend_on_the_order_of_the_sites(tmp_path: Path) -> None:
    study = clinic()
    tables = tables_of(study, clinic_files(tmp_path))
    assert prepare(study, tables) == prepare(study, tables[::-1])


def test_a_preparation_survives_the_journey(tmp_path: Path) -> None:
    study = clinic()
    prepared = prepare(study, tables_of(study, clinic_files(tmp_path)))
    assert federated.from_json(federated.to_json(prepared)) == prepared
    with pytest.raises(ValueError, match="cannot read"):
        federated.from_json('{"columns": [{"kind": "os.system"}], "missing": []}')


@pytest.mark.parametrize(
    "columns",
    [
        (Number("age", 0, 0, 1, False),),
        (Category("age", ("50",), False), Number("dose", 0, 0, 1, False), Dropped("ward", ""), Dropped("day", ""),
         Dropped("remark", "")),
        (Number("age", 0, 0, 1, False), Number("dose", 0, 0, 1, False), Category("ward", ("secret",), False),
         Dropped("day", ""), Dropped("remark", "")),
        (Number("age", 0, 0, 1, False), Number("dose", 0, 0, 1, False), Dropped("ward", ""),
         Date("day", "1900-01-01", Number("day days", 0, 0, 1, False), ()), Dropped("remark", "")),
        (Number("age", 0, 0, 1, False), Number("dose", 0, 0, 1, False), Dropped("ward", ""), Dropped("day", ""),
         Category("remark", ("remark 1",), False)),
    ],
)  # fmt: skip
def test_a_site_refuses_a_preparation_that_asks_for_more_than_the_study(columns: tuple[Any, ...]) -> None:
    with pytest.raises(RefusedBySiteError):
        federated.check_against(clinic(), Preparation(columns, "site", "ill", True))


AGE = Number("age", 0.0, 0.0, 1.0, False)
DAY = Date("day", "2020-01-01T00:00:00.000000", Number("day days", 0.0, 0.0, 1.0, False), ())
WARD = Category("ward", ("a", "b", None), True)
PLAIN = Preparation((AGE, Dropped("dose", ""), WARD, DAY, Dropped("remark", "")), "site", "ill", True)


def with_column(column: Any) -> Preparation:
    columns = tuple(column if old.name == column.name else old for old in PLAIN.columns)
    return replace(PLAIN, columns=columns)


@pytest.mark.parametrize(
    "hostile",
    [
        replace(PLAIN, missing=("50",)),  # would set cells of the coordinator's choice to missing
        replace(PLAIN, task="ward"),
        replace(PLAIN, target="dose"),
        replace(PLAIN, task_is_file_name=False),
        with_column(Category("ward", ("a", "a"), False)),
        with_column(Category("ward", ("a",), 5)),  # type: ignore[arg-type]
        with_column(replace(DAY, parts=("Mon", "Mon"))),
        with_column(replace(DAY, days=replace(DAY.days, scale=0.0))),
        with_column(replace(AGE, scale=-1.0)),
        with_column(replace(AGE, scale=float("nan"))),
        with_column(replace(AGE, mean=float("inf"))),
        with_column(replace(AGE, fill="0")),  # type: ignore[arg-type]
        with_column(replace(AGE, flagged=2)),  # type: ignore[arg-type]
        with_column(replace(AGE, comma=True)),
    ],
)
def test_a_site_refuses_a_preparation_with_other_texts_duplicates_or_numbers(hostile: Preparation) -> None:
    federated.check_against(clinic(), PLAIN)
    with pytest.raises(RefusedBySiteError):
        federated.check_against(clinic(), federated.from_json(federated.to_json(hostile)))
