"""Columns to features: the same as scikit-learn's transformers make, and the same bits after saving and loading."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dmtrl
from dmtrl.exceptions import CellError, OutputExistsError
from dmtrl.tables.learning import Choices, learn
from dmtrl.tables.output import check_output
from dmtrl.tables.preparation import Dropped, Replacements
from support.shell_data import shops


def test_numbers_and_categories_match_scikit_learn() -> None:
    """SimpleImputer gives the indicator after the value; StandardScaler leaves it to us to scale only the value."""
    table, new = shops(m=8, rows=60), shops(m=8, rows=20, seed=1)
    table, new = table.select(["shop", "sales", "size", "price", "colour"]), new.select(["size", "price", "colour"])
    frame, more = table.to_pandas(), new.to_pandas()
    words = [f.assign(colour=f["colour"].astype(object).where(f["colour"].notna(), None)) for f in (frame, more)]
    oracle = ColumnTransformer(
        [
            ("size", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["size"]),
            ("price", StandardScaler(), ["price"]),
            (
                "colour",
                OneHotEncoder(min_frequency=4, handle_unknown="infrequent_if_exist", sparse_output=False),
                ["colour"],
            ),
        ]
    ).fit(words[0])
    preparation = learn(table, "shop", "sales")
    for f, w, t in ((frame, words[0], table), (more, words[1], new)):
        X = preparation.transform(t)
        named = dict(zip(preparation.feature_names, X.T, strict=True))
        np.testing.assert_array_equal(named.pop("size missing"), f["size"].isna())
        np.testing.assert_allclose(np.column_stack(list(named.values())), oracle.transform(w), rtol=1e-15, atol=0)
    assert preparation.feature_names[-1] == "colour = (other)"


def test_all_kinds_of_data_frames_give_the_same_features() -> None:
    table = shops()
    preparation = learn(table, "shop", "sales")
    X = preparation.transform(table)
    assert X.shape == (table.num_rows, len(preparation.feature_names))
    assert np.isfinite(X).all()
    np.testing.assert_array_equal(preparation.transform(table.to_pandas()), X)
    import polars as pl

    np.testing.assert_array_equal(preparation.transform(pl.from_arrow(table)), X)


def test_loaded_model_gives_the_same_features(tmp_path: Path) -> None:
    table, new = shops(), shops(seed=3)
    preparation = learn(table, "shop", "sales", choices=Choices(number=["row_id"], drop=["verdict"]))
    X, shop = preparation.transform(table), table.column("shop").to_pylist()
    model = dmtrl.MTRLRegressor().fit(X, table.column("sales").to_numpy(), tasks=shop)
    model.preparation_ = preparation
    model.save(tmp_path / "model")
    loaded = dmtrl.load(tmp_path / "model")
    assert loaded.preparation_ == preparation
    for rows in (table, new):
        np.testing.assert_array_equal(loaded.preparation_.transform(rows), preparation.transform(rows))


def test_kinds_of_columns() -> None:
    kinds = {name: (kind, done, count) for name, kind, done, count in learn(shops(), "shop", "sales").table()}
    assert {name for name, (kind, _, _) in kinds.items() if kind == "left out"} == {"remark", "row_id", "kg"}
    assert "200 different values in 200 rows" in kinds["remark"][1]
    assert kinds["kg"][1] == "always 7"
    assert kinds["size"][2] == 2
    assert kinds["day"][0] == "date"
    forced = learn(shops(), "shop", "sales", choices=Choices(number=["row_id"], category=["kg", "open"]))
    kinds = {name: (kind, done, count) for name, kind, done, count in forced.table()}
    assert kinds["row_id"][0] == "number"
    assert kinds["open"] == ("category", "two values, one column; 0 for 'false'", 1)


def test_rare_unknown_and_missing_categories() -> None:
    words = ["a"] * 50 + ["b"] * 47 + [None] * 2 + ["rare"]
    table = pa.table({"t": ["x", "y"] * 50, "y": np.arange(100.0), "c": words})
    preparation = learn(table, "t", "y")
    assert preparation.feature_names == ["c = a", "c = b", "c = (missing)", "c = (other)"]
    X = preparation.transform({"c": pa.array(["b", "new", None, "rare", " a "])})
    assert X.argmax(axis=1).tolist() == [1, 3, 2, 3, 0]
    assert (X.sum(axis=1) == 1).all()


def test_category_without_rare_levels_ignores_unknown_levels() -> None:
    table = pa.table({"t": ["x", "y", "z"] * 30, "y": np.arange(90.0), "c": ["a", "b", "d"] * 30})
    tally = Replacements()
    X = learn(table, "t", "y").transform({"c": pa.array(["a", "new", None])}, tally=tally)
    assert X.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert tally.notes() == [
        "column 'c': 1 missing cells have no effect",
        "column 'c': 1 of 3 cells hold levels that were not in the fit: 'new'; they have no effect",
    ]


def test_two_values_give_one_feature_as_scikit_learn_does() -> None:
    """Both with a missing value as the second one, and with one frequent and several rare ones."""
    columns = {
        "c": ["a", "b"] * 50,
        "hole": ["a"] * 60 + [None] * 40,
        "rare": ["a"] * 98 + ["b", "c"],
        "three": ["a", "b", "d", "b"] * 25,
    }
    table = pa.table({"t": ["x", "y"] * 50, "y": np.arange(100.0), **columns})
    preparation = learn(table, "t", "y")
    of_three = ["three = a", "three = b", "three = d"]
    assert preparation.feature_names == ["c = b", "hole = (missing)", "rare = (other)", *of_three]
    words = np.array([[None if cell is None else cell for cell in row] for row in zip(*columns.values(), strict=True)])
    oracle = OneHotEncoder(drop="if_binary", min_frequency=2, handle_unknown="ignore", sparse_output=False).fit(words)
    np.testing.assert_array_equal(preparation.transform(table), oracle.transform(words))
    tally = Replacements()
    new = {"c": ["z", "a"], "hole": ["z", "a"], "rare": ["b", "z"], "three": ["a", None]}
    X = preparation.transform({name: pa.array(cells) for name, cells in new.items()}, tally=tally)
    assert X.tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0]]
    assert tally.unknown == {"c": {"z": 1}, "hole": {"z": 1}, "rare": {"z": 1}}
    assert "column 'c': 1 of 2 cells hold levels that were not in the fit: 'z'; they count as 'a'" in tally.notes()


def test_dates() -> None:
    days = np.datetime64("2023-01-01") + np.arange(0, 730)  # a Sunday
    table = pa.table({"t": ["x"] * 730, "y": np.arange(730.0), "d": days.astype("datetime64[D]")})
    preparation = learn(table, "t", "y")
    named = dict(zip(preparation.feature_names, preparation.transform(table).T, strict=True))
    assert named["d Sun"][:8].tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
    assert np.corrcoef(named["d days"], np.arange(730))[0, 1] == pytest.approx(1)
    np.testing.assert_allclose(named["d year sine"] ** 2 + named["d year cosine"] ** 2, 1)
    assert named["d year cosine"][0] == pytest.approx(1)
    assert abs(named["d year sine"][0] - named["d year sine"][365]) < 1e-9
    short = learn(table.slice(0, 20), "t", "y")
    assert not any("year" in name for name in short.feature_names), "a season cannot be seen in 20 days"
    gone = preparation.transform({"d": pa.array([None], pa.date32())})
    assert np.isfinite(gone).all()


def test_unusable_columns_are_left_out() -> None:
    n = 60
    table = pa.table(
        {
            "t": ["x", "y"] * 30,
            "y": np.arange(60.0),
            "list": [[1]] * n,
            "nothing": pa.nulls(n),
            "empty": pa.array([None] * n, pa.string()),
            "one": ["same"] * n,
            "guid": np.arange(n) * 7,
        }
    )
    preparation = learn(table, "t", "y")
    assert all(isinstance(column, Dropped) for column in preparation.columns)
    assert preparation.used == []


def test_infinity_and_text_among_numbers_are_refused() -> None:
    table = pa.table({"t": ["x", "y"] * 30, "y": np.arange(60.0), "x": np.linspace(0, 1, 60)})
    preparation = learn(table, "t", "y")
    with pytest.raises(ValueError, match="column 'x' holds infinity"):
        preparation.transform({"x": pa.array([1.0, np.inf])})
    with pytest.raises(ValueError, match=r"column 'x' holds 'abc' \(row 2\), which is not a number"):
        preparation.transform({"x": pa.array(["1", "abc"])})
    with pytest.raises(ValueError, match=r"column 'x' holds '1_000' \(row 1\), which is not a number"):
        preparation.transform({"x": pa.array(["1_000", "2"])})
    with pytest.raises(ValueError, match="the model needs the column 'x'"):
        preparation.transform({"z": pa.array([1.0])})


def test_a_column_of_mixed_cells_is_a_typed_error() -> None:
    cells = [*map(str, range(59)), "n/k"]
    table = pa.table({"t": ["x", "y"] * 30, "y": np.arange(60.0), "age": cells})
    with pytest.raises(CellError, match="column 'age' holds numbers, except for 1 of 60 cells") as caught:
        learn(table, "t", "y", untyped=["age"])
    error = caught.value
    assert (error.value, error.row) == ("n/k", 59)
    for way in ("missing=['n/k']", "drop=['age']", "category=['age']"):
        assert way in str(error)
    error.where = "line 61"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.where) == (CellError, str(error), "line 61")


def test_an_existing_output_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    check_output(path, force=False)
    path.touch()
    with pytest.raises(OutputExistsError, match=r"out\.csv already exists; .* force=True") as caught:
        check_output(path, force=False)
    assert caught.value.path == path
    check_output(path, force=True)
    with pytest.raises(FileExistsError, match="is an input file"):
        check_output(path, force=True, inputs=[path])
