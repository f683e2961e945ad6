"""dmtrl report: a page about a saved model, with the data of the fit or without, through the model's preparation."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dmtrl
from dmtrl.exceptions import NotAModelError
from dmtrl.workflows.fit import fit
from dmtrl.workflows.prepare import prepare
from dmtrl.workflows.report import read_known_rows
from dmtrl.workflows.requests import FitRequest
from support.shell_data import error_of, run, shops, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a model of amounts and a model of classes."""
    folder = tmp_path_factory.mktemp("report")
    write(shops(m=4), folder / "shops.csv")
    for target, drop in (("sales", "verdict"), ("verdict", "sales")):
        words = {"task": "shop", "target": target, "drop": (drop,), "reg_lambda": 0.01}
        fit(FitRequest([folder / "shops.csv"], **words, out=folder / f"{target}.dmtrl"))
    return folder


def test_report_without_data_writes_the_page_beside_the_model(folder: Path) -> None:
    result = run("report", folder / "sales.dmtrl")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"page: {folder / 'sales.html'}\n"
    page = (folder / "sales.html").read_text(encoding="utf-8")
    assert "dmtrl report MODEL DATA" in page
    assert "<title>sales by shop</title>" in page
    assert "colour = red" in page, "features have the names that the preparation gave them"
    again = run("report", folder / "sales.dmtrl")
    assert again.exit_code == 1
    assert "--force" in again.stderr
    assert run("report", folder / "sales.dmtrl", "--force", "--quiet").output == ""


@pytest.mark.parametrize("target", ["sales", "verdict"])
def test_report_prepares_data_as_the_fit_did(folder: Path, target: str, tmp_path: Path) -> None:
    result = run("report", folder / f"{target}.dmtrl", folder / "shops.csv", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    model = dmtrl.load(folder / f"{target}.dmtrl")
    data = prepare(
        FitRequest([folder / "shops.csv"], "shop", target, drop=("sales" if target == "verdict" else "verdict",))
    )
    rows = read_known_rows(model, [folder / "shops.csv"])
    assert np.array_equal(rows.X, data.X)
    assert np.array_equal(rows.y, data.y)
    assert np.array_equal(rows.tasks, data.tasks)
    comparison = model.compare(data.X, data.y, data.tasks)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    keys = {float(key) for key in re.findall(r'data-key="([^"]+)"', page)}
    for errors in (comparison.together, comparison.alone, comparison.pooled):
        assert set(errors.tolist()) <= keys


def test_report_counts_rows_that_it_leaves_out(folder: Path, tmp_path: Path) -> None:
    table = shops(m=5)  # shop 005 is new
    sales = table.column("sales").to_pylist()
    sales[:3] = [None] * 3
    i = table.column_names.index("sales")
    write(table.set_column(i, "sales", pa.array(sales)), tmp_path / "more.csv")
    result = run("report", folder / "sales.dmtrl", tmp_path / "more.csv", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "left out: 3 rows with no target value that the model knows" in result.stderr
    strangers = sum(
        shop == "005" and sale is not None for shop, sale in zip(table.column("shop").to_pylist(), sales, strict=True)
    )
    assert f"left out: {strangers} rows with a task that the model does not have" in result.stderr


def test_report_errors_print_one_line(folder: Path, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    dmtrl.MTRLRegressor().fit(X, X[:, 0], tasks=np.arange(20) % 2).save(tmp_path / "python.dmtrl")
    write(shops(m=4).drop_columns(["price"]), tmp_path / "less.csv")
    write(shops(m=2), tmp_path / "few.csv")
    cases: list[tuple[tuple[object, ...], type[Exception], str]] = [
        ((tmp_path / "python.dmtrl", folder / "shops.csv"), ValueError, "was fitted on arrays"),
        ((folder / "shops.csv",), NotAModelError, ""),
        ((tmp_path / "none.dmtrl",), FileNotFoundError, ""),
        ((folder / "sales.dmtrl", tmp_path / "less.csv"), ValueError, "'price'"),
        ((folder / "sales.dmtrl", tmp_path / "few.csv"), ValueError, "the data has no row of task '003'; use data of"),
        ((folder / "sales.dmtrl", "-o", tmp_path / "no" / "page.html"), FileNotFoundError, ""),
    ]
    for words, kind, sentence in cases:
        error = error_of("report", *words, *(() if "-o" in words else ("-o", tmp_path / "out.html")))
        assert isinstance(error, kind), words
        assert sentence in str(error)
    assert not (tmp_path / "out.html").exists()
    assert run("report", tmp_path / "python.dmtrl").exit_code == 0, "without data any model has a page"
