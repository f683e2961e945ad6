"""A newcomer with the CSV file of a shop chain, as it comes: every trap is told, and the numbers are right."""

import io
import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import dmtrl
from dmtrl.cli.main import COMMANDS
from support.shell_data import run

STORES, ROWS = 40, 24
FIRST = date(2023, 3, 1)
NOTES = (
    "Kunde fragt nach Rabatt",
    "Regal war leer heute morgen",
    "Lieferung kam spät",
    "alles wie immer, nichts Neues",
)


class Retail(NamedTuple):
    """The file of the fit, the file to predict, and the numbers before they were written."""

    fit: Path
    new: Path
    truth: pd.DataFrame


def _comma(values: Any) -> list[str]:
    return ["" if np.isnan(value) else f"{value:.2f}".replace(".", ",") for value in values]


def _european(days: Any) -> list[str]:
    return [f"{day:%d.%m.%Y}" for day in days]


def _rows(rng: np.random.Generator, stores: Any) -> pd.DataFrame:
    n = len(stores)
    days = [FIRST + timedelta(days=int(i)) for i in rng.integers(0, 500, n)]
    price, area = rng.uniform(1, 9, n), rng.normal(80, 15, n)
    promo, kind = rng.choice(["ja", "nein"], n), rng.choice(["Stadt", "Land", "Vorort"], n)
    number = pd.Series(stores).str[1:].astype(int).to_numpy()
    score = 0.8 * (5 - price) + 0.9 * (promo == "ja") + 0.03 * (area - 80) + 0.02 * number - 0.4 + rng.normal(size=n)
    features = {"Datum": days, "Preis": price, "Fläche": area, "Aktion": promo, "Lage": kind}
    return pd.DataFrame({"Filiale": stores, **features, "verkauft": np.where(score > 0, "ja", "nein")})


def _written(frame: pd.DataFrame, first: int) -> pd.DataFrame:
    n = len(frame)
    notes = [f"{NOTES[i % 4]} Nr {first + i}" for i in range(n)]
    columns = {"Beleg": [f"B-{first + i:06d}" for i in range(n)]} | {name: frame[name] for name in frame}
    columns |= {"Datum": _european(frame["Datum"]), "Preis": _comma(frame["Preis"]), "Fläche": _comma(frame["Fläche"])}
    return pd.DataFrame(columns | {"Notiz": notes})


@pytest.fixture(scope="module")
def retail(tmp_path_factory: pytest.TempPathFactory) -> Retail:
    folder, rng = tmp_path_factory.mktemp("retail"), np.random.default_rng(7)
    sizes = {f"F{i:02d}": ROWS for i in range(1, STORES + 1)} | {"F07": 3}
    table = _rows(rng, np.repeat(list(sizes), list(sizes.values())))
    table.loc[table["Filiale"] == "F11", "verkauft"] = "ja"
    table.loc[rng.random(len(table)) < 0.06, "Fläche"] = np.nan
    table = table.sample(frac=1.0, random_state=1).reset_index(drop=True)
    _written(table, 1).to_csv(folder / "verkauf.csv", sep=";", index=False, encoding="cp1252")
    new = _rows(rng, np.array(["F01", "F02", "F99", "F07"] * 5))
    new.loc[[0, 5], "Lage"] = "Bahnhof"
    _written(new, 5000).to_csv(folder / "neu.csv", sep=";", index=False, encoding="cp1252")
    return Retail(folder / "verkauf.csv", folder / "neu.csv", table)


@pytest.fixture(scope="module")
def fitted(retail: Retail) -> tuple[Path, dict[str, Any]]:
    model = retail.fit.with_name("model.dmtrl")
    options = ["--task", "Filiale", "--target", "verkauft", "--encoding", "cp1252", "--lambda", "0.05", "--compare"]
    result = run("fit", retail.fit, *options, "-o", model, "--json")
    assert result.exit_code == 0, result.output
    return model, json.loads(result.stdout)


def test_encoding_error_names_the_option(retail: Retail, tmp_path: Path) -> None:
    result = run("fit", retail.fit, "--task", "Filiale", "--target", "verkauft", "-o", tmp_path / "m")
    assert result.exit_code == 1
    assert "its text is not UTF-8; save it as UTF-8, or pass --encoding cp1252" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_kind_of_every_column(fitted: tuple[Path, dict[str, Any]], retail: Retail) -> None:
    model, found = fitted
    kinds = {line["column"]: (line["kind"], line["features"]) for line in found["columns"]}
    assert kinds["Preis"] == ("number", 1)
    assert kinds["Fläche"] == ("number", 2), "and a flag for the holes"
    assert kinds["Aktion"] == ("category", 1), "two values"
    assert kinds["Lage"] == ("category", 3)
    assert kinds["Datum"][0] == "date"
    assert kinds["Beleg"] == kinds["Notiz"] == ("left out", 0)
    assert found["tasks"] == STORES
    assert found["rows"] == (STORES - 1) * ROWS + 3
    days = next(column for column in dmtrl.load(model).preparation_.columns if column.name == "Datum")
    assert days.format == "%d.%m.%Y"
    assert days.first[:10] == str(min(retail.truth["Datum"]))


def test_automatic_decisions_are_noted(fitted: tuple[Path, dict[str, Any]]) -> None:
    notes = fitted[1]["notes"]
    for words in (
        "decimal commas, as in",
        "left out, free text: 'Notiz'; to use its words, pass --text Notiz",
        "left out, identifiers: 'Beleg'; to use one anyway, pass --category Beleg",
        "target 'verkauft' is text: classification",
        "1 of 40 tasks have rows of only one class and always predict it",
    ):
        assert any(words in note for note in notes), (words, notes)
    assert not any("\n" in note for note in notes)


def test_messy_table_gives_the_figures_of_the_clean_one(fitted: tuple[Path, dict[str, Any]], retail: Retail) -> None:
    """The same model as from columns that were never written as text, but for the rounding to two decimals."""
    model, truth = dmtrl.load(fitted[0]), retail.truth
    area = truth["Fläche"].round(2)
    filled = area.fillna(area.median())
    values = dict(zip(model.preparation_.feature_names, model.preparation_.transform(_typed(retail)).T, strict=True))
    np.testing.assert_allclose(values["Fläche"], (filled - filled.mean()) / filled.std(ddof=0), atol=1e-9)
    np.testing.assert_array_equal(values["Fläche missing"], area.isna())
    np.testing.assert_array_equal(values["Aktion = nein"], truth["Aktion"] == "nein")
    np.testing.assert_array_equal(values["Datum Sat"], [day.weekday() == 5 for day in truth["Datum"]])
    coefficient = model.coef_[:, model.preparation_.feature_names.index("Preis")]
    assert model.classes_.tolist() == ["ja", "nein"]
    assert (coefficient > 0).sum() > 0.9 * STORES, "a higher price sells less: nein, the second class"


def _typed(retail: Retail) -> pd.DataFrame:
    truth = retail.truth
    typed = {
        "Datum": pd.to_datetime(truth["Datum"]),
        "Preis": truth["Preis"].round(2),
        "Fläche": truth["Fläche"].round(2),
    }
    return truth.assign(**typed)


def test_the_summary_has_the_comparison(fitted: tuple[Path, dict[str, Any]]) -> None:
    compared, rows = fitted[1]["compared"], {row["task"]: row for row in fitted[1]["per_task"]}
    assert "alone" in compared
    assert "of 39;" in compared, "F11 has a single class, and nothing to compare"
    assert rows["F01"]["together"] < 0.5
    assert rows["F01"]["alone"] is not None


def test_new_stores_and_new_levels_at_predict(fitted: tuple[Path, dict[str, Any]], retail: Retail) -> None:
    model, out = fitted[0], retail.fit.with_name("p.csv")
    words = ("predict", model, retail.new, "--encoding", "cp1252", "--keep", "Beleg")
    refused = run(*words, "-o", out)
    assert refused.exit_code == 1
    assert "the unknown task 'F99'; pass --unknown skip" in refused.stderr
    assert not out.exists()
    result = run(*words, "--unknown", "shared", "-o", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["unknown_tasks"] == ["F99"]
    assert found["unknown_task_rows"] == 5
    assert found["unknown_levels"] == {"Lage": {"Bahnhof": 2}}
    assert any(
        "column 'Lage': 2 of 20 cells hold levels that were not in the fit: 'Bahnhof'" in n for n in found["notes"]
    )
    table = pd.read_csv(out)
    assert len(table) == 20
    assert set(table["prediction"]) <= {"ja", "nein"}
    np.testing.assert_allclose(table["probability_ja"] + table["probability_nein"], 1.0, atol=1e-9)
    text = run("predict", model, retail.fit, "--encoding", "cp1252", "-q").stdout
    single = pd.read_csv(io.StringIO(text))
    assert (single.loc[single["Filiale"] == "F11", "prediction"] == "ja").all()


def test_report_with_and_without_the_rows(fitted: tuple[Path, dict[str, Any]], retail: Retail) -> None:
    page = retail.fit.with_name("page.html")
    result = run("report", fitted[0], "-o", page, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["report"] == str(page)
    assert page.stat().st_size < 2_000_000
    result = run("report", fitted[0], retail.fit, "--encoding", "cp1252", "-o", page, "--force", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rows = {row["task"]: row for row in found["per_task"]}
    assert rows["F07"]["rows"] == 3
    assert rows["F01"]["rows"] == ROWS
    known = [row for row in rows.values() if row["together"] is not None]
    assert len(known) >= STORES - 2
    assert all(0 <= row[name] <= 1 for row in known for name in ("together", "alone", "pooled"))
    assert np.mean([row["together"] for row in known]) < np.mean([row["alone"] for row in known])


@pytest.mark.skipif("export" not in COMMANDS, reason="this version has no dmtrl export")
def test_export(fitted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    result = run("export", fitted[0], "-o", tmp_path / "model.json")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
    terms = {(term["column"], term.get("value")): term["coefficient"] for term in found["models"][0]["terms"]}
    model = dmtrl.load(fitted[0])
    assert terms["Aktion", "ja"] == 0, "the value without a feature"
    assert terms["Aktion", "nein"] == model.coef_[0][model.preparation_.feature_names.index("Aktion = nein")]
