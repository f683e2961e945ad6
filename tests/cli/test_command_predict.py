"""dmtrl predict: what the library predicts, from every format; tasks and values never seen; files beyond memory."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import dump_svmlight_file

import dmtrl
from conftest import SharedData
from dmtrl.exceptions import CellError, NotAModelError, OutputExistsError
from dmtrl.workflows.fit import fit
from dmtrl.workflows.predict import predict
from dmtrl.workflows.requests import FitRequest, PredictRequest
from support.shell_data import error_of, run, shops, write

WORDS = ("--task", "shop", "--lambda", "0.01", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and rows that neither has seen."""
    folder = tmp_path_factory.mktemp("predict")
    data = write(shops(), folder / "shops.csv")
    regression = (*WORDS, "--target", "sales", "--drop", "verdict", "-o", folder / "sales.model")
    classes = (*WORDS, "--target", "verdict", "--drop", "sales", "-o", folder / "verdict.model")
    for words in (regression, classes):
        assert run("fit", data, *words).exit_code == 0
    write(shops(seed=5), folder / "new.csv")
    return folder


def test_predict_agrees_with_the_library(folder: Path, tmp_path: Path) -> None:
    new = shops(seed=5)
    for target in ("sales", "verdict"):
        model = dmtrl.load(folder / f"{target}.model")
        X, shop = model.preparation_.transform(new), new.column("shop").to_pylist()
        expected = model.predict(X, tasks=shop)
        for ending in (".csv", ".csv.gz", ".parquet", ".feather"):
            data, out = write(new, tmp_path / f"new{ending}"), tmp_path / f"{target}{ending}"
            result = run("predict", folder / f"{target}.model", data, "-o", out)
            assert result.exit_code == 0, result.output
            readers = {".parquet": pd.read_parquet, ".feather": pd.read_feather}
            found = readers[ending](out) if ending in readers else pd.read_csv(out, dtype=str)
            assert found["shop"].tolist() == shop
            assert found["prediction"].astype(expected.dtype).tolist() == expected.tolist()
            if target == "verdict":
                np.testing.assert_array_equal(found.iloc[:, 2:].astype(float), model.predict_proba(X, tasks=shop))
                assert list(found.columns[2:]) == ["probability_bad", "probability_good"]
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_predictions_do_not_depend_on_chunks(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("predict", folder / "verdict.model", folder / "new.csv", "-q").stdout
    monkeypatch.setattr("dmtrl.tables.readers.BLOCK", 3000)
    monkeypatch.setattr("dmtrl.workflows.predict.CHUNK", 1)
    assert run("predict", folder / "verdict.model", folder / "new.csv", "-q").stdout == whole
    assert len(whole.splitlines()) == 201


def test_kept_columns(folder: Path) -> None:
    result = run("predict", folder / "sales.model", folder / "new.csv", "-q", "--keep", "row_id", "--keep", "remark")
    found = pd.read_csv(io.StringIO(result.stdout), dtype=str)
    assert list(found.columns) == ["shop", "row_id", "remark", "prediction"]
    new = shops(seed=5)
    assert found["remark"].tolist() == new.column("remark").to_pylist()
    everything = run("predict", folder / "sales.model", folder / "new.csv", "-q", "--keep", "*")
    assert list(pd.read_csv(io.StringIO(everything.stdout)).columns) == [*new.column_names, "prediction"]


def test_unknown_tasks(folder: Path, tmp_path: Path) -> None:
    new = shops(m=6, seed=5)
    data, model = write(new, tmp_path / "new.parquet"), dmtrl.load(folder / "sales.model")
    strange = np.array(new.column("shop").to_pylist()) == "006"
    out = tmp_path / "out.parquet"
    result = run("predict", folder / "sales.model", data, "-o", out)
    assert result.exit_code == 1
    assert f"row {int(np.argmax(strange)) + 1} has the unknown task '006'; pass --unknown skip to" in result.stderr
    assert "or --unknown shared to predict them" in result.stderr
    assert not out.exists()
    X, shop = model.preparation_.transform(new), np.array(new.column("shop").to_pylist())
    common = model.set_params(unknown_tasks="shared").predict(X, tasks=shop)
    assert run("predict", folder / "sales.model", data, "-o", out, "--unknown", "shared").exit_code == 0
    np.testing.assert_array_equal(pd.read_parquet(out)["prediction"], common)
    result = run("predict", folder / "sales.model", data, "-o", out, "--unknown", "skip", "--force", "--json")
    found = json.loads(result.stdout)
    assert (found["unknown_task_rows"], found["unknown_tasks"]) == (40, ["006"])
    np.testing.assert_array_equal(pd.read_parquet(out)["prediction"], np.where(strange, np.nan, common))
    only = write(new.filter(strange), tmp_path / "only.csv")
    result = run("predict", folder / "verdict.model", only, "--unknown", "skip", "-q")
    assert result.stdout.splitlines()[1] == '"006",,,'


def test_unknown_tasks_without_a_common_component(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    words = (*WORDS, "--target", "sales", "--drop", "verdict", "--no-common", "-o", out)
    assert run("fit", folder / "shops.csv", *words).exit_code == 0
    data = write(shops(m=6, seed=5), tmp_path / "new.csv")
    result = run("predict", out, data, "-q", "--unknown", "shared")
    assert result.exit_code == 1
    assert "has the unknown task '006', and the model has nothing that tasks share" in result.stderr


def test_libsvm_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(90, 4)), np.repeat([3, 4, 5], 30)
    dump_svmlight_file(X, X[:, 0] * task, str(tmp_path / "a.svm"), query_id=task)
    assert run("fit", tmp_path / "a.svm", "--lambda", "0.1", "-q", "-o", tmp_path / "m").exit_code == 0
    wider = np.column_stack([X, np.ones(90)])  # a feature that fit never saw
    dump_svmlight_file(wider, np.zeros(90), str(tmp_path / "b.svm"), query_id=task)
    result = run("predict", tmp_path / "m", tmp_path / "b.svm", "-q")
    assert result.exit_code == 0, result.output
    expected = dmtrl.load(tmp_path / "m").predict(csr_matrix(X), tasks=task)
    np.testing.assert_allclose(pd.read_csv(io.StringIO(result.stdout))["prediction"], expected, rtol=1e-12)
    (tmp_path / "a.csv").write_text("qid,x\n3,1\n", encoding="utf-8")
    result = run("predict", tmp_path / "m", tmp_path / "a.csv", "-q")
    assert result.exit_code == 1
    assert "the model was fitted on a libsvm file" in result.stderr


def test_unknown_categories_missing_and_extra_columns(folder: Path, tmp_path: Path) -> None:
    new = shops(seed=5).append_column("weather", pa.array(["fair"] * 200))
    price = new.column_names.index("price")
    holes = new.set_column(price, "price", pa.array([None, *new.column("price").to_pylist()[1:]]))
    result = run("predict", folder / "sales.model", write(holes, tmp_path / "a.csv"), "-o", tmp_path / "a.parquet")
    assert result.exit_code == 0
    assert "columns that the model does not use: 'weather'" in result.stderr
    assert "column 'price': 1 missing, replaced by" in result.stderr
    renamed = new.rename_columns(["Price" if name == "price" else name for name in new.column_names])
    data = write(renamed, tmp_path / "b.csv")
    result = run("predict", folder / "sales.model", data, "-o", tmp_path / "b.parquet")
    assert result.exit_code == 1
    assert "did you mean 'Price'?; to treat it as missing, pass --fill" in result.stderr
    result = run("predict", folder / "sales.model", data, "-o", tmp_path / "b.parquet", "--fill")
    assert result.exit_code == 0
    assert "column 'price' is not in the data; all values are missing" in result.stderr
    model = dmtrl.load(folder / "sales.model")
    gone = new.set_column(price, "price", pa.nulls(200, pa.float64()))
    expected = model.predict(model.preparation_.transform(gone), tasks=new.column("shop").to_pylist())
    assert pd.read_parquet(tmp_path / "b.parquet")["prediction"].tolist() == expected.tolist()


def test_task_numbers_match_across_file_types(tmp_path: Path) -> None:
    """A CSV with whole numbers as tasks, predicted from Parquet where a hole has made them floats."""
    table = shops()
    numbers = table.set_column(0, "shop", pa.array([int(name) for name in table.column("shop").to_pylist()]))
    data = write(numbers, tmp_path / "a.csv")
    words = (*WORDS, "--target", "sales", "--drop", "verdict", "--category", "kg", "-o", tmp_path / "m")
    assert run("fit", data, *words).exit_code == 0
    model = dmtrl.load(tmp_path / "m")
    assert model.tasks_.tolist() == [1, 2, 3, 4, 5]
    floats = numbers.set_column(0, "shop", pa.array([None, *map(float, numbers.column("shop").to_pylist()[1:])]))
    out = tmp_path / "out.parquet"
    result = run("predict", tmp_path / "m", write(floats, tmp_path / "b.parquet"), "-o", out, "--unknown", "skip")
    assert result.exit_code == 0, result.output
    expected = model.predict(model.preparation_.transform(table), tasks=numbers.column("shop").to_numpy())
    np.testing.assert_array_equal(pd.read_parquet(out)["prediction"], [np.nan, *expected[1:]])


def test_predict_a_folder_where_each_file_is_a_task(tmp_path: Path) -> None:
    table = shops(m=3, shuffled=False).drop_columns(["shop", "verdict"])
    for i in range(3):
        write(table.slice(40 * i, 40), tmp_path / "data" / f"00{i + 1}.csv")
    words = ("--target", "sales", "--lambda", "0.1", "-q", "-o", tmp_path / "m")
    assert run("fit", tmp_path / "data", *words).exit_code == 0
    whole = run("predict", tmp_path / "m", tmp_path / "data", "-q").stdout.splitlines()
    one = run("predict", tmp_path / "m", tmp_path / "data" / "002.csv", "-q").stdout.splitlines()
    assert one[1:] == whole[41:81]
    assert one[1].startswith('"002",')


def test_wrong_arguments_print_one_line_and_write_nothing(folder: Path, tmp_path: Path) -> None:
    model, data = folder / "sales.model", folder / "new.csv"
    X = np.random.default_rng(0).normal(size=(20, 2))
    dmtrl.MTRLRegressor().fit(X, X[:, 0]).save(tmp_path / "python.model")
    (tmp_path / "cut.model").write_bytes(model.read_bytes()[:-100])
    (tmp_path / "header.csv").write_text(",".join(shops().column_names), encoding="utf-8")
    (tmp_path / "there.csv").write_text("precious", encoding="utf-8")
    text = write(shops().set_column(2, "price", pa.array(["cheap"] * 200)), tmp_path / "text.csv")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    new = tmp_path / "out.csv"
    cases: list[tuple[tuple[object, ...], type[Exception]]] = [
        ((data, model, "-o", new), NotAModelError),
        ((model, model, "-o", new), ValueError),
        ((tmp_path / "cut.model", data, "-o", new), ValueError),
        ((tmp_path / "python.model", data, "-o", new), ValueError),
        ((tmp_path / "none.model", data, "-o", new), FileNotFoundError),
        ((model, tmp_path / "none.csv", "-o", new), FileNotFoundError),
        ((model, tmp_path / "header.csv", "-o", new), ValueError),
        ((model, data, "-o", tmp_path / "there.csv"), OutputExistsError),
        ((model, data, "-o", tmp_path / "no" / "out.csv"), FileNotFoundError),
        ((model, data, "-o", tmp_path / "out.xlsx"), ValueError),
        ((model, data, "-o", model.with_suffix(".csv"), "--keep", "remarks"), ValueError),
        ((model, text, "-o", new), CellError),
    ]
    for words, kind in cases:
        assert isinstance(error_of("predict", *words), kind), words
    lines = run("predict", model, text, "-o", new).stderr.splitlines()
    assert lines[-1].startswith("Error: column 'price' holds 'cheap' (line 2), which is not a number")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory where Linux tells it")
@pytest.mark.subprocess
def test_memory_does_not_grow_with_the_file(folder: Path, tmp_path: Path) -> None:
    """Peak memory of the real command in its own process, on a file and on one four times as large."""
    code = (
        "import sys\nfrom dmtrl.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr)"
    )
    peaks, sizes = [], []
    line_count = 0
    for copies in (900, 3600):
        data = tmp_path / f"{copies}.csv"
        head, *rows = (folder / "new.csv").read_bytes().splitlines(keepends=True)
        data.write_bytes(head + b"".join(rows) * copies)
        sizes.append(data.stat().st_size / 2**20)
        out = tmp_path / f"{copies}.out.csv"
        words = ["predict", str(folder / "sales.model"), str(data), "-q", "-o", str(out)]
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        peaks.append(int(done.stderr.split()[1]) / 1024)
        with open(out, "rb") as file:
            line_count = sum(1 for _ in file)
    assert line_count == 3600 * 200 + 1
    # the features alone of the rows by which the files differ would take 80 MB, their text as much as in the file
    assert peaks[1] - peaks[0] < sizes[1] - sizes[0], (peaks, sizes)


def test_fit_and_predict_as_functions(folder: Path, tmp_path: Path) -> None:
    words = {"task": "shop", "target": "sales", "drop": ["verdict"], "reg_lambda": 0.01}
    result = fit(FitRequest([folder / "shops.csv"], **words, out=tmp_path / "m"))
    assert result.out == tmp_path / "m"
    assert result.page is None
    assert result.summary.model.certificate.relative_gap <= 1e-3
    np.testing.assert_array_equal(result.model.coef_, dmtrl.load(folder / "sales.model").coef_)
    request = PredictRequest(result.out, [folder / "new.csv"], tmp_path / "out.parquet", keep=["kg", "kg", "shop"])
    found = predict(request)
    assert found.rows == pd.read_parquet(found.out).shape[0] == 200
    assert found.columns == ("shop", "kg", "prediction")
    with pytest.raises(OutputExistsError):
        predict(request)


@pytest.mark.data
def test_school_as_csv_with_text_and_missing_cells(tmp_path: Path, shared_data: SharedData) -> None:
    """School as CSV with names, two more columns of text, and holes: works the first time, and sharing still helps."""
    archive = np.load(shared_data / "school.npz")
    rng = np.random.default_rng(0)
    names = archive["feature_names"][:27].tolist()
    frame = pd.DataFrame(archive["X"][:, :27].astype(float), columns=names)
    n = len(frame)
    frame["school"] = [f"School {i:03d}" for i in archive["task"]]
    frame["mood"] = rng.choice(["calm", "loud", "odd"], n)
    frame["remark"] = [f"pupil {i} was {rng.integers(10**6)}" for i in range(n)]
    frame["score"] = archive["y"].astype(float)
    for name in (names[3], "mood"):
        frame.loc[rng.random(n) < 0.05, name] = None
    train, test = (frame.iloc[archive[f"{part}_1"]] for part in ("train", "test"))
    train.to_csv(tmp_path / "train.csv")
    test.drop(columns="score").to_csv(tmp_path / "test.csv")
    options = ["--task", "school", "--target", "score", "--lambda", "0.6", "--json"]
    result = run("fit", tmp_path / "train.csv", *options, "-o", tmp_path / "m")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["tasks"], found["rows"]) == (139, 11472)
    kinds = {line["column"]: line["kind"] for line in found["columns"]}
    assert (kinds["remark"], kinds["unnamed_0"], kinds["mood"]) == ("left out", "left out", "category")
    assert run("predict", tmp_path / "m", tmp_path / "test.csv", "-o", tmp_path / "p.csv", "-q").exit_code == 0
    answers = pd.read_csv(tmp_path / "p.csv")
    model = dmtrl.load(tmp_path / "m")
    expected = model.predict(model.preparation_.transform(test), tasks=test["school"])
    np.testing.assert_allclose(answers["prediction"], expected, rtol=1e-12)
    explained = 1 - np.mean((answers["prediction"] - test["score"].to_numpy()) ** 2) / test["score"].var()
    assert explained > 0.3, "with every column in order it is 0.37 to 0.40 on the ten splits"


def test_three_classes_with_own_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shop, X = np.repeat(["a", "b", "c"], 60), rng.normal(size=(180, 3))
    grade = np.array(["low", "middle", "high"])[np.argmax(X + 0.3 * rng.normal(size=(180, 3)), axis=1)]
    data = write(pa.table({"shop": shop, "x": X[:, 0], "z": X[:, 1], "v": X[:, 2], "grade": grade}), tmp_path / "a.csv")
    options = ["--task", "shop", "--target", "grade", "--own", "1", "--lambda", "0.01", "--json"]
    fitted = run("fit", data, *options, "-o", tmp_path / "m.dmtrl")
    assert fitted.exit_code == 0, fitted.output
    found = json.loads(fitted.stdout)
    assert all(sum(row["shares"].values()) == pytest.approx(1.0) for row in found["per_task"])
    assert max(row["shares"]["own"] for row in found["per_task"]) > 0
    predicted = run("predict", tmp_path / "m.dmtrl", data, "-q")
    assert predicted.exit_code == 0, predicted.output
    table = pd.read_csv(io.StringIO(predicted.stdout))
    assert (table["prediction"] == grade).mean() > 0.8
    chances = table[["probability_low", "probability_middle", "probability_high"]].to_numpy()
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert run("report", tmp_path / "m.dmtrl", data, "-o", tmp_path / "page.html", "-q").exit_code == 0
