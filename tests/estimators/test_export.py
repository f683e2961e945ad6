"""Exported models predict what dmtrl predicts: JSON and CSV by a few lines of Python, ONNX by onnxruntime."""

import csv
import datetime
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dmtrl
from dmtrl import RFF, MTRLClassifier, MTRLRegressor, export
from dmtrl.estimators.onnx_graph import onnx_bytes
from dmtrl.exceptions import OutputExistsError
from support.shell_data import run, shops, write

WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


def rows(n: int = 90, d: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(n, d)), np.repeat(["east", "north", "south"], n // 3)
    return X, X @ np.arange(1, d + 1) + rng.normal(size=n), tasks


def number(cell: str) -> float:
    return float({"true": "1", "false": "0", "": "nan"}.get(cell, cell))


def term_value(term: dict[str, Any], levels: set[str], cell: str) -> float:
    """What a coefficient of an exported model multiplies, from the text of a cell of a CSV file."""
    kind, missing = term["kind"], cell == ""
    if kind == "missing":
        return float(missing)
    if kind == "number":
        return term["fill"] if missing else number(cell)
    if kind == "level":
        return float(cell == term["value"])
    if kind == "other":
        return float(cell not in levels)
    if kind == "days":
        start = datetime.datetime.fromisoformat(term["value"])
        return term["fill"] if missing else (datetime.datetime.fromisoformat(cell) - start) / datetime.timedelta(1)
    assert kind == "date part"
    if missing:
        return 0.0
    day = datetime.date.fromisoformat(cell)
    angle = 2 * math.pi * (day - day.replace(month=1, day=1)).days / 365.2425
    parts = {"year sine": math.sin(angle), "year cosine": math.cos(angle)}
    return parts.get(term["value"], float(WEEKDAYS[day.weekday()] == term["value"]))


def score_by_hand(model: dict[str, Any], row: dict[str, str]) -> float:
    levels: dict[str, set[str]] = {}
    for term in model["terms"]:
        levels.setdefault(term["column"], set()).update([term["value"]] if term["kind"] == "level" else [])
        if term["kind"] == "missing":
            levels[term["column"]].add("")
    values = [
        0.0 if term["kind"] == "word" else term_value(term, levels[term["column"]], row[term["column"]])
        for term in model["terms"]
    ]
    words = [i for i, term in enumerate(model["terms"]) if term["kind"] == "word"]
    for i in words:
        term = model["terms"][i]
        values[i] = term["idf"] * re.findall(r"\b\w\w+\b", row[term["column"]].lower()).count(term["value"])
    norm = math.sqrt(sum(values[i] ** 2 for i in words)) or 1.0
    for i in words:
        values[i] /= norm
    return math.fsum([model["intercept"], *(t["coefficient"] * v for t, v in zip(model["terms"], values, strict=True))])


@pytest.fixture(scope="module")
def shop_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of `dmtrl fit` for each target, and new rows with holes, a rare colour and an unknown one."""
    folder = tmp_path_factory.mktemp("shops")
    data = write(shops(), folder / "shops.csv")
    for target in ("sales", "verdict"):
        other = "verdict" if target == "sales" else "sales"
        words = ["fit", data, "--task", "shop", "--target", target, "--drop", other, "--drop", "remark"]
        done = run(*words, "--drop", "row_id", "--lambda", 0.1, "--out", folder / f"{target}.dmtrl", "--no-page")
        assert done.exit_code == 0, done.output
    new = shops(rows=6, seed=1).drop_columns(["sales", "verdict", "remark", "row_id"])
    colours = ["beige", None, *new.column("colour").to_pylist()[2:]]
    colour = new.column_names.index("colour")
    write(new.set_column(colour, "colour", pa.array(colours)), folder / "new.csv")
    for target in ("sales", "verdict"):
        done = run("predict", folder / f"{target}.dmtrl", folder / "new.csv", "-o", folder / f"{target}.csv")
        assert done.exit_code == 0, done.output
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_json_of_a_shell_model_predicts_from_the_columns_as_they_are(shop_files: Path) -> None:
    assert run("export", shop_files / "sales.dmtrl", "-o", shop_files / "sales.json").exit_code == 0
    exported = json.loads((shop_files / "sales.json").read_text())
    assert (exported["task_column"], exported["target"], exported["prediction"]) == ("shop", "sales", "score")
    models = {model["task"]: model for model in exported["models"]}
    assert set(models) == {"001", "002", "003", "004", "005"}
    kinds = {term["kind"] for term in models["001"]["terms"]}
    assert {"number", "missing", "level", "other", "days", "date part"} <= kinds
    expected = [float(line["prediction"]) for line in read_csv(shop_files / "sales.csv")]
    by_hand = [score_by_hand(models[row["shop"]], row) for row in read_csv(shop_files / "new.csv")]
    np.testing.assert_allclose(by_hand, expected, rtol=1e-9, atol=1e-9)


def test_reference_levels_and_words_are_part_of_the_formula(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 120
    member = rng.choice(["yes", "no"], n)
    origin = np.where(rng.random(n) < 0.97, "here", [f"place {i}" for i in range(n)])
    note = rng.choice(["great value, great fit", "broken on arrival", "fits well", ""], n)
    price = rng.normal(size=n)
    sales = price + (member == "yes") + np.char.count(note, "great") + 0.1 * rng.normal(size=n)
    columns = {"shop": np.tile(["a", "b"], n // 2), "member": member, "origin": origin, "note": note, "price": price}
    data = write(pa.table(columns | {"sales": sales}), tmp_path / "data.csv")
    model = tmp_path / "m.dmtrl"
    words = ["--task", "shop", "--target", "sales", "--text", "note", "--category", "origin", "--lambda", 0.1]
    done = run("fit", data, *words, "--out", model, "--no-page")
    assert done.exit_code == 0, done.output
    assert run("predict", model, data, "-o", tmp_path / "predicted.csv").exit_code == 0
    assert run("export", model, "-o", tmp_path / "m.json").exit_code == 0
    models = {part["task"]: part for part in json.loads((tmp_path / "m.json").read_text())["models"]}
    kinds = [(term["column"], term["kind"]) for term in models["a"]["terms"]]
    assert ("note", "word") in kinds
    references = [term for term in models["a"]["terms"] if term["feature"] == "(reference)"]
    assert {term["column"] for term in references} == {"member", "origin"}
    assert ("origin", "other") in kinds, "rare places share a feature"
    assert all(term["coefficient"] == 0 for term in references)
    expected = [float(line["prediction"]) for line in read_csv(tmp_path / "predicted.csv")]
    by_hand = [score_by_hand(models[row["shop"]], row) for row in read_csv(data)]
    np.testing.assert_allclose(by_hand, expected, rtol=1e-9, atol=1e-9)
    pytest.importorskip("onnx", reason='needs onnx: pip install "dmtrl[onnx]"')
    done = run("export", model, "--task", "a", "-o", tmp_path / "m.onnx")
    assert "column 'note' is a text, which an ONNX graph cannot read" in done.output


def test_csv_has_the_same_numbers_and_says_what_they_multiply(shop_files: Path) -> None:
    out = shop_files / "two.csv"
    assert run("export", shop_files / "sales.dmtrl", "--task", "002", "-o", out).exit_code == 0
    lines = read_csv(out)
    assert {line["task"] for line in lines} == {"002"}
    assert [line["kind"] for line in lines].count("intercept") == 1
    words = {line["feature"]: line["multiplies"] for line in lines}
    assert words["colour = red"] == "1 if 'colour' is 'red', else 0"
    assert words["size"].startswith("the value of 'size', ")
    model = dmtrl.load(shop_files / "sales.dmtrl")
    scale = next(column.scale for column in model.preparation_.columns if column.name == "price")
    j = model.preparation_.feature_names.index("price")
    found = next(float(line["coefficient"]) for line in lines if line["feature"] == "price")
    assert found == pytest.approx(model.coef_[1, j] / scale, rel=1e-12)


def test_arrays_and_several_classes(tmp_path: Path) -> None:
    X, y, tasks = rows()
    labels = np.digitize(y, [-3.0, 3.0])
    model = MTRLClassifier().fit(X, labels, tasks=tasks)
    export(model, tmp_path / "all.json")
    exported = json.loads((tmp_path / "all.json").read_text())
    assert exported["classes"] == [0, 1, 2]
    assert len(exported["models"]) == 9
    scores = {
        (part["task"], part["class"]): part["intercept"] + X @ [term["coefficient"] for term in part["terms"]]
        for part in exported["models"]
    }
    north = np.column_stack([scores["north", label] for label in range(3)])
    np.testing.assert_allclose(north, model.decision_function(X, tasks=["north"] * len(X)), atol=1e-12)
    assert [term["feature"] for term in exported["models"][0]["terms"]] == ["x0", "x1", "x2", "x3"]


def test_errors_say_what_to_do_and_write_nothing(tmp_path: Path) -> None:
    X, y, tasks = rows()
    model = MTRLRegressor().fit(X, y, tasks=tasks)
    for name, task, message in [
        ("m.txt", None, "unsupported extension; supported: .csv, .json, .onnx"),
        ("m.csv", "west", "unknown task 'west': the model has 'east', 'north', 'south'"),
        ("m.onnx", None, "an ONNX graph holds the model of one task, and this model has 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / name, task)
    with pytest.raises(ValueError, match="do not multiply columns of the data; export it as"):
        export(MTRLRegressor(feature_map="rff").fit(X, y, tasks=tasks), tmp_path / "m.csv")
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    X, y, tasks = rows()
    model, out = MTRLRegressor().fit(X, y, tasks=tasks), tmp_path / "kept.json"
    out.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"kept\.json already exists; .* pass force=True to replace it"):
        export(model, out)
    assert out.read_text() == "mine"
    export(model, out, force=True)
    assert len(json.loads(out.read_text())["models"]) == 3


def test_the_shell_names_its_options_and_keeps_existing_files(shop_files: Path) -> None:
    model, out = shop_files / "sales.dmtrl", shop_files / "kept.json"
    done = run("export", model, "-o", shop_files / "m.onnx")
    assert done.exit_code == 1
    assert "pass --task with one of '001', '002'" in done.output
    out.write_text("mine")
    done = run("export", model, "-o", out)
    assert "already exists" in done.output
    assert out.read_text() == "mine"
    done = run("export", model, "-o", out, "--force", "--json")
    assert json.loads(done.output)["tasks"] == 5
    assert run("export", shop_files / "new.csv", "-o", out, "--force").exit_code == 1


def session(content: bytes) -> Any:
    runtime = pytest.importorskip("onnxruntime", reason='needs onnxruntime: pip install "dmtrl[onnx]"')
    return runtime.InferenceSession(content, providers=["CPUExecutionProvider"])


def onnx_of(model: Any, task: int) -> bytes:
    pytest.importorskip("onnx", reason='needs onnx: pip install "dmtrl[onnx]"')
    return onnx_bytes(model, task)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (MTRLRegressor(), "numbers"),
        (MTRLRegressor(loss="poisson"), "counts"),
        (MTRLRegressor(feature_map=RFF(n_components=7)), "numbers"),
        (MTRLClassifier(), "words"),
        (MTRLClassifier(), "three"),
        (MTRLClassifier(loss="hinge"), "words"),
    ],
    ids=["squared", "poisson", "rff", "two classes", "three classes", "hinge"],
)
def test_onnx_graphs_predict_the_same(model: Any, target: str) -> None:
    X, y, tasks = rows()
    y = {
        "numbers": y,
        "counts": np.floor(np.abs(y)),
        "words": np.where(y > 0, "yes", "no"),
        "three": np.digitize(y, [-3.0, 3.0]),
    }[target]
    model.fit(X, y, tasks=tasks)
    graph = session(onnx_of(model, 1))
    found = dict(zip([output.name for output in graph.get_outputs()], graph.run(None, {"X": X}), strict=True))
    north = ["north"] * len(X)
    expected = model.predict(X, tasks=north)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found["prediction"][:, 0], expected, rtol=1e-6, atol=1e-6)
    else:
        assert found["prediction"][:, 0].tolist() == expected.tolist()
    assert ("probability" in found) == hasattr(model, "predict_proba")
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(found["probability"], model.predict_proba(X, tasks=north), rtol=1e-6, atol=1e-9)


def test_onnx_of_a_shell_model_takes_the_columns(shop_files: Path) -> None:
    pytest.importorskip("onnx", reason='needs onnx: pip install "dmtrl[onnx]"')
    for target in ("sales", "verdict"):
        out = shop_files / f"{target}.onnx"
        done = run("export", shop_files / f"{target}.dmtrl", "--task", "002", "-o", out, "--force")
        assert done.exit_code == 0, done.output
        graph = session(out.read_bytes())
        table = read_csv(shop_files / "new.csv")
        parts = {term["feature"]: term for term in formula(shop_files / f"{target}.dmtrl")["terms"]}
        feeds = {}
        for given in graph.get_inputs():
            if given.type == "tensor(string)":
                values = np.array([[row[given.name]] for row in table], dtype=object)
            elif given.name in parts and parts[given.name]["kind"] in ("days", "date part"):
                term = parts[given.name]
                values = np.array([[term_value(term, set(), row[term["column"]])] for row in table])
            else:
                values = np.array([[number(row[given.name])] for row in table])
            feeds[given.name] = values
        prediction = graph.run(["prediction"], feeds)[0][:, 0]
        for row, value, line in zip(table, prediction, read_csv(shop_files / f"{target}.csv"), strict=True):
            if row["shop"] == "002":
                assert str(value) == line["prediction"] or float(value) == pytest.approx(
                    float(line["prediction"]), rel=1e-6
                )


def formula(path: Path) -> dict[str, Any]:
    """The JSON export of task 002 of a model file."""
    out = path.with_suffix(".one.json")
    export(dmtrl.load(path), out, "002")
    found: dict[str, Any] = json.loads(out.read_text())["models"][0]
    return found


def test_other_feature_maps_cannot_become_graphs() -> None:
    from sklearn.preprocessing import StandardScaler

    X, y, tasks = rows()
    model = MTRLRegressor(feature_map=StandardScaler()).fit(X, y, tasks=tasks)
    pytest.importorskip("onnx", reason='needs onnx: pip install "dmtrl[onnx]"')
    with pytest.raises(ValueError, match="StandardScaler cannot be exported to ONNX"):
        onnx_bytes(model, 0)


def test_two_values_are_exported_with_the_one_that_has_no_feature(tmp_path: Path) -> None:
    """Of two levels, of a level and holes, and of a level and rare ones; with a level that the fit did not see."""
    rng, n = np.random.default_rng(0), 120
    columns = {
        "two": rng.choice(["a", "b"], n).tolist(),
        "hole": rng.choice(["a", ""], n).tolist(),
        "rare": ["p", "q", *["a"] * (n - 2)],
    }
    score = sum((np.array(cells) == "a") * (i + 1.0) for i, cells in enumerate(columns.values()))
    rows = list(zip(*columns.values(), rng.choice(["u", "v"], n), (score + rng.normal(size=n)).round(3), strict=True))
    for name, some in (("a.csv", rows), ("new.csv", [*rows[:6], ("z", "z", "z", "u", 0.0)])):
        lines = [",".join([*columns, "t", "y"]), *(",".join(map(str, row)) for row in some)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ("--task", "t", "--target", "y", "--lambda", "0.1", "--no-page", "-q", "-o", tmp_path / "m")
    assert run("fit", tmp_path / "a.csv", *words).exit_code == 0
    assert run("export", tmp_path / "m", "-o", tmp_path / "m.json", "-q").exit_code == 0
    assert run("predict", tmp_path / "m", tmp_path / "new.csv", "-q", "-o", tmp_path / "p.csv").exit_code == 0
    models = {model["task"]: model for model in json.loads((tmp_path / "m.json").read_text())["models"]}
    assert sum(term["coefficient"] == 0 for term in models["u"]["terms"]) == 3
    by_hand = [score_by_hand(models[row["t"]], row) for row in read_csv(tmp_path / "new.csv")]
    expected = [float(line["prediction"]) for line in read_csv(tmp_path / "p.csv")]
    np.testing.assert_allclose(by_hand, expected, rtol=1e-9, atol=1e-9)
