"""The check of a site's file: what it finds, and what of it may leave the site."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dmtrl.federation.site.data_check import ERROR, NOTE, WARNING, SiteCheck, check_file
from dmtrl.federation.study.study_file import parse_study
from support.shell_data import write
from support.studies import CLINIC, clinic, clinic_table, draft


def check_table(table: pa.Table, tmp_path: Path, text: str = CLINIC) -> SiteCheck:
    return check_file(parse_study(text.encode()), write(table, tmp_path / "site.csv"))


def texts(check: SiteCheck, level: str) -> str:
    return " | ".join(finding.text for finding in check.findings if finding.level == level)


def replaced(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def test_a_file_that_fits(tmp_path: Path) -> None:
    check = check_table(clinic_table(0), tmp_path)
    assert check.data is not None
    assert not check.errors
    assert check.data.rows_per_task.tolist() == [60]
    assert set(check.data.y) == {-1.0, 1.0}
    assert "'age': 6 of 60 cells are missing" in texts(check, NOTE)
    assert "not in the study" in texts(check, NOTE)


def test_a_missing_column_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    names = [name.replace("dose", "Dose") for name in clinic_table(0).column_names]
    check = check_table(clinic_table(0).rename_columns(names), tmp_path)
    assert check.data is None
    assert check.errors[0].text == "the column 'dose' is missing; is it 'Dose' here?"
    assert check.errors[0].public == "the column 'dose' is missing", "names of other columns stay at the site"


def test_an_unlisted_level_is_an_error_and_its_text_stays(tmp_path: Path) -> None:
    words = clinic_table(0).column("ward").to_pylist()
    words[5] = words[9] = "isolation"
    check = check_table(replaced(clinic_table(0), "ward", words), tmp_path)
    assert "'isolation' (2 rows)" in check.errors[0].text
    assert check.errors[0].public == "column 'ward' holds a level that the study does not list"
    other = CLINIC.replace('levels = ["a", "b", "c", "rare"]', 'levels = ["a", "b", "c", "rare"]\nother = true')
    check = check_table(replaced(clinic_table(0), "ward", words), tmp_path, other)
    assert not check.errors
    assert "'isolation' (2 rows) share one feature" in texts(check, NOTE)


def test_a_cell_that_is_not_a_number_stays_at_the_site(tmp_path: Path) -> None:
    cells = [f"{x:.1f}" for x in np.linspace(20, 80, 60)]
    cells[3] = "Miller"
    check = check_table(replaced(clinic_table(0), "age", cells), tmp_path)
    assert "'Miller' (line 5)" in check.errors[0].text
    assert "Miller" not in check.errors[0].public


def test_another_coding_of_the_target_is_an_error(tmp_path: Path) -> None:
    cells = ["1" if word == "yes" else "2" for word in clinic_table(0).column("ill").to_pylist()]
    check = check_table(replaced(clinic_table(0), "ill", cells), tmp_path)
    assert "holds '1', '2', but the study lists 'no', 'yes'" in check.errors[0].text
    assert "coded in another way" in check.errors[0].public


def drafted(tmp_path: Path) -> str:
    like = write(clinic_table(0, 200), tmp_path / "like.csv")
    kept = draft(like, "clinic", "ill", drop=["remark", "wing", "test", "day"])
    return kept.source.decode()


def test_flipped_codes_of_the_target_are_an_error(tmp_path: Path) -> None:
    text = drafted(tmp_path)
    table = clinic_table(1, 200)
    assert check_table(table, tmp_path, text).data is not None
    cells = ["no" if word == "yes" else "yes" for word in table.column("ill").to_pylist()]
    check = check_table(replaced(table, "ill", cells), tmp_path, text)
    assert check.data is None
    assert "its codes are probably flipped here" in check.errors[0].text
    assert "coded the other way round" in check.errors[0].public


def test_flipped_codes_of_a_column_are_a_warning(tmp_path: Path) -> None:
    text, table = drafted(tmp_path), clinic_table(1, 200)
    cells = [-x for x in table.column("dose").to_pylist()]
    check = check_table(replaced(table, "dose", cells), tmp_path, text)
    assert check.data is not None
    assert "column 'dose': its correlation with the target is -" in texts(check, WARNING)


def test_cells_outside_the_range_are_a_warning(tmp_path: Path) -> None:
    months = [None if x is None else 12 * x for x in clinic_table(0).column("age").to_pylist()]
    check = check_table(replaced(clinic_table(0), "age", months), tmp_path)
    assert check.data is not None
    assert "54 of 54 cells are outside the study's range, 0 to 120; is it measured in another unit" in texts(
        check, WARNING
    )


def test_too_few_rows_and_a_single_class_are_errors(tmp_path: Path) -> None:
    check = check_table(clinic_table(0, 9), tmp_path)
    assert "this site has 9 rows with a target, fewer than 10" in texts(check, ERROR)
    assert "9" not in check.errors[0].public, "the number of rows stays at the site"
    check = check_table(replaced(clinic_table(0), "ill", ["yes"] * 60), tmp_path)
    assert "this site has only rows of the class 'yes'; its model always predicts it" in texts(check, WARNING)
    assert check.data is not None
    assert (check.data.usable.tolist(), check.data.single.tolist(), check.data.fitted.tolist()) == (
        [True],
        [1],
        [False],
    )


def test_small_tasks_of_a_site_are_left_out(tmp_path: Path) -> None:
    text = CLINIC.replace("[fit]", '[tasks]\nby = "wing"\nvalues = ["left", "right", "cellar"]\n\n[fit]')
    wings = clinic_table(0).column("wing").to_pylist()
    wings[0] = wings[1] = "cellar"
    wings[2] = "attic"
    check = check_table(replaced(clinic_table(0), "wing", wings), tmp_path, text)
    assert check.data is not None
    assert check.data.usable.tolist() == [True, True, False]
    assert check.data.rows_per_task.sum() == 57
    assert "this site: cellar has 2 rows" in texts(check, WARNING)
    assert "1 of 60 rows without a task of the study" in texts(check, NOTE)


def test_rows_without_a_target_and_held_out_rows_are_not_fitted(tmp_path: Path) -> None:
    cells = clinic_table(0).column("ill").to_pylist()
    cells[0] = cells[1] = None
    text = CLINIC.replace("[fit]", '[fit]\nheld_out = "test"')
    check = check_table(replaced(clinic_table(0), "ill", cells), tmp_path, text)
    assert check.data is not None
    assert len(check.data.y) == 58
    assert check.data.rows_per_task.tolist() == [44]
    assert "2 of 60 rows without a target" in texts(check, NOTE)
    check = check_table(replaced(clinic_table(0), "test", list(range(60))), tmp_path, text)
    assert "must hold 1 for held-out rows" in texts(check, ERROR)


def test_a_file_in_parquet_gives_the_same_rows(tmp_path: Path) -> None:
    one = check_file(clinic(), write(clinic_table(0), tmp_path / "a.csv")).data
    other = check_file(clinic(), write(clinic_table(0), tmp_path / "a.parquet")).data
    assert one is not None
    assert other is not None
    assert one.table.equals(other.table)


@pytest.mark.data
def test_the_hospitals_fit_the_heart_study(shared_data: Path) -> None:
    heart = shared_data / "heart" / "cleveland.csv"
    study = draft(heart, "heart", "num", drop=["slope", "ca", "thal"])
    for name, rows in (("cleveland", 303), ("hungarian", 294), ("switzerland", 123), ("va", 200)):
        check = check_file(study, heart.with_name(f"{name}.csv"))
        assert check.data is not None
        assert check.data.rows_per_task.tolist() == [rows]
        if name == "switzerland":
            assert "column 'chol': 123 of 123 cells are outside" in texts(check, WARNING)
