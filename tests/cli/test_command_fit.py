"""dmtrl fit: the same model from every format, decisions that are said, and refusals in one sentence."""

import inspect
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import dump_svmlight_file

import dmtrl
from dmtrl import MTRLClassifier, load
from dmtrl.cli.errors import option
from dmtrl.engines import LocalOptions, recovery
from dmtrl.engines.recovery import RecoveringEngine
from dmtrl.exceptions import InputError, NotAModelError, Setting
from dmtrl.solver.checkpoint import newest, options
from dmtrl.workflows.fit import estimator
from dmtrl.workflows.prepare import prepare
from dmtrl.workflows.requests import FitRequest
from support.fragile import Fragile
from support.shell_data import error_of, run, shops, write

QUICK = ("--task", "shop", "--target", "sales", "--drop", "verdict", "--lambda", "0.1", "--quiet")


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return shops()


@pytest.fixture
def csv(tmp_path: Path, table: pa.Table) -> Path:
    return write(table, tmp_path / "shops.csv")


def test_every_format_gives_the_same_model(tmp_path: Path) -> None:
    table = shops(shuffled=False)
    bare, rows = table.drop_columns("shop"), 40
    for i in range(5):
        write(bare.slice(rows * i, rows), tmp_path / "hive" / f"shop=00{i + 1}" / "part.parquet")
        write(bare.slice(rows * i, rows), tmp_path / "plain" / f"00{i + 1}.csv")
        write(table.slice(rows * i, rows), tmp_path / "pieces" / f"{i}.feather")
    single = [write(table, tmp_path / f"shops{end}") for end in (".csv", ".csv.gz", ".tsv", ".parquet", ".arrow")]
    models = []
    for data in (*single, tmp_path / "hive", tmp_path / "plain", tmp_path / "pieces"):
        out = tmp_path / f"{data.name}.model"
        result = run("fit", data, *(QUICK if data.name != "plain" else QUICK[2:]), "--out", out)
        assert result.exit_code == 0, (data, result.output)
        assert result.output == ""
        models.append(dmtrl.load(out))
    first = models[0]
    assert first.tasks_.tolist() == ["001", "002", "003", "004", "005"]
    for model in models[1:]:
        assert model.tasks_.tolist() == first.tasks_.tolist()
        assert model.preparation_.columns == first.preparation_.columns
        for name in ("coef_", "intercept_", "task_covariance_", "common_coef_"):
            np.testing.assert_array_equal(getattr(model, name), getattr(first, name))
        assert model.certificate_ == first.certificate_


def test_fit_command_matches_the_estimator(tmp_path: Path, csv: Path, table: pa.Table) -> None:
    options = ["--task", "shop", "--target", "sales", "--drop", "verdict", "--no-common", "--json"]
    result = run("fit", csv, *options, "-o", tmp_path / "model")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    model = dmtrl.load(tmp_path / "model")
    X = model.preparation_.transform(table)
    y, shop = table.column("sales").to_numpy(), table.column("shop").to_pylist()
    own = dmtrl.MTRLRegressorCV(commons=(0.0,), random_state=0).fit(X, y, tasks=shop)
    np.testing.assert_array_equal(model.coef_, own.coef_)
    assert found["lambda"] == own.reg_lambda_
    assert found["certificate"]["primal"] == own.certificate_.primal
    assert found["certificate"]["relative_gap"] <= 1e-3
    assert found["rounds"] == own.n_rounds_
    assert found["rows"] == 200
    assert [row["task"] for row in found["per_task"]] == own.tasks_.tolist()
    errors = [row["held_out_error"] for row in found["per_task"]]
    np.testing.assert_allclose(errors, own.metrics_.per_task["rmse"] ** 2)
    j = int(np.argmax(own.cv_results_.lambdas == own.reg_lambda_))
    searched = own.cv_results_.squared_error[0, j].sum(axis=0) / own.cv_results_.weight[0, j].sum(axis=0)
    np.testing.assert_allclose(errors, searched, rtol=0.1)
    for name in ("r2", "mae", "rmse"):
        assert found["metrics"][name] == {"model": own.metrics_.overall[name], "baseline": own.metrics_.baseline[name]}
        assert [row["metrics"][name] for row in found["per_task"]] == own.metrics_.per_task[name].tolist()
    assert dmtrl.verify(model, X, y, tasks=shop).relative_gap <= 1e-3
    first, second, value = found["relations"]["alike"][0]
    correlation = own.task_correlation_
    assert value == pytest.approx(correlation.loc[first, second])
    assert value == pytest.approx(np.triu(correlation, 1).max())


def test_summary_lists_columns_and_figures(tmp_path: Path, csv: Path) -> None:
    words = [word for word in QUICK if word != "--quiet"]
    result = run("fit", csv, *words, "--compare", "-o", tmp_path / "model")
    assert result.exit_code == 0, result.output
    columns = ("colour", "category", "days since", "always 7", "left out")
    figures = ("regression, squared loss", "001 and", "proven within", "200 in 5 tasks (shop)", "sharing hurts")
    for part in (*columns, *figures, "dmtrl predict"):
        assert part in result.stdout, part
    assert "reading" in result.stderr
    assert "reading" not in result.stdout


@pytest.mark.parametrize("weights", [(), ("--weights", "w")])
def test_summary_json_and_page_agree_on_the_baseline(tmp_path: Path, weights: tuple[str, ...]) -> None:
    """The table has a task with only one row, which has no baseline within its task."""
    rng = np.random.default_rng(0)
    task, x, w = ["u"] * 20 + ["v"] * 19 + ["single"], rng.normal(size=40), rng.integers(1, 4, 40)
    y = np.round(x + 0.3 * rng.normal(size=40), 3)
    y[-1] = 50.0
    data = write(pa.table({"t": task, "x": x, "w": w, "y": y}), tmp_path / "a.csv")
    words = ("fit", data, "--task", "t", "--target", "y", "--no-common", "--force", "-o", tmp_path / "m.dmtrl")
    words = (*words, *(weights or ("--drop", "w")))
    by_json, printed = json.loads(run(*words, "--json").stdout), run(*words).stdout
    errors, each = [], []
    for i in range(39):
        others = [j for j in range(39) if j != i and task[j] == task[i]]
        mean = np.average(y[others], weights=w[others] if weights else None)
        errors.append((y[i] - mean) ** 2)
        each.append(w[i] if weights else 1)
    baseline = by_json["baseline"]
    assert baseline == pytest.approx(np.average(errors, weights=each), rel=0.1), "that one has all rows but one"
    assert baseline == pytest.approx(by_json["metrics"]["rmse"]["baseline"] ** 2)
    assert by_json["held_out"]["squared_error"] == pytest.approx(by_json["metrics"]["rmse"]["model"] ** 2)
    assert f"(baseline, each task's mean: {baseline:.4g})" in " ".join(printed.split())
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert f'<dt dir="auto">baseline: each task&#39;s mean</dt><dd dir="auto">{baseline:.4g}</dd>' in page
    error = f"{by_json['held_out']['squared_error']:.4g}"
    assert f"mean squared error {error} over all rows" in " ".join(printed.split())
    assert f'mean over rows</dt><dd dir="auto">{error}</dd>' in page


@pytest.mark.parametrize(
    ("target", "words", "kind", "said"),
    [
        (["a", "b", "c"] * 40, (), "classification", "is text: classification"),
        ([0, 1] * 60, (), "classification", "two values, 0 and 1: classification"),
        ([1, 2, 3] * 40, (), "regression", "3 whole numbers, 1 to 3: regression; if they are classes"),
        ([1, 2, 3] * 40, ("--kind", "classification"), "classification", ""),
        ([1, 2, 3] * 40, ("--loss", "poisson"), "regression", ""),
        (np.linspace(0, 1, 120), (), "regression", "120 different numbers: regression"),
        (np.linspace(0, 1, 120), ("--loss", "quantile=0.9"), "regression", ""),
        ([True, False] * 60, ("--loss", "hinge"), "classification", ""),
    ],
)
def test_kind_of_target(tmp_path: Path, target: object, words: tuple[str, ...], kind: str, said: str) -> None:
    rng = np.random.default_rng(0)
    data = write(
        pa.table({"t": np.repeat(["u", "v"], 60), "x": rng.normal(size=120), "y": pa.array(target)}), tmp_path / "a.csv"
    )
    result = run("fit", data, "--task", "t", "--target", "y", "--lambda", "0.1", "--json", *words, "-o", tmp_path / "m")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["kind"] == kind
    assert any(said in note for note in found["notes"]) or not said


def test_rows_without_task_target_or_weight_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [f"{'uv'[i % 2]},{i % 7},{i * i % 11},1" for i in range(60)]
    lines += [",1,2,1", "u,1,,1", "v,NA,3,1", "u,1,2,"]
    (tmp_path / "a.csv").write_text("\n".join(["t,x,y,w", *lines]), encoding="utf-8")
    out = tmp_path / "m"
    options = ["--task", "t", "--target", "y", "--weights", "w", "--lambda", "1", "--json"]
    result = run("fit", tmp_path / "a.csv", *options, "-o", out)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["rows_read"], found["rows"]) == (64, 61)
    for what in ("task", "target", "weight"):
        assert f"left out: 1 of 64 rows without a {what}" in found["notes"]
    assert [column["column"] for column in found["columns"]] == ["x", "w"]
    assert found["columns"][1]["features"] == 0


def test_weights_are_equivalent_to_repeated_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 60
    t, x, w = np.repeat(["u", "v"], n // 2), rng.normal(size=n), rng.integers(1, 4, n)
    y = x + rng.normal(size=n)
    weighted = pa.table({"t": t, "x": x, "y": y, "w": w})
    repeated = weighted.take(np.repeat(np.arange(n), w))
    models = []
    for data, words in ((weighted, ("--weights", "w")), (repeated, ("--drop", "w"))):
        path = write(data, tmp_path / "a.parquet")
        words = ("--task", "t", "--target", "y", "--lambda", "1e-6", "--tol", "1e-8", "-q", "--force", *words)
        assert run("fit", path, *words, "-o", tmp_path / "m").exit_code == 0
        models.append(dmtrl.load(tmp_path / "m"))
    # x is scaled without weights, so lambda would mean something else in the two: it is next to nothing here
    slope = [model.coef_[:, 0] / model.preparation_.columns[0].scale for model in models]
    np.testing.assert_allclose(slope[0], slope[1], rtol=1e-3)


def test_npz_and_libsvm_have_default_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(90, 4)), np.repeat([3, 4, 5], 30)
    y = X[:, 0] * task
    np.savez(tmp_path / "a.npz", X=X, y=y, task=task)
    dump_svmlight_file(X, y, str(tmp_path / "a.svm"), query_id=task)
    (tmp_path / "files").mkdir()
    for i in (3, 4, 5):
        dump_svmlight_file(X[task == i], y[task == i], str(tmp_path / "files" / f"{i}.svm"))
    for data, words in (("a.npz", ()), ("a.svm", ()), ("files", ())):
        result = run("fit", tmp_path / data, *words, "--lambda", "0.1", "--force", "-q", "-o", tmp_path / "m")
        assert result.exit_code == 0, result.output
        model = dmtrl.load(tmp_path / "m")
        assert model.tasks_.tolist() == [3, 4, 5]
        expected = X if data != "a.npz" else (X - X.mean(axis=0)) / X.std(axis=0)
        own = dmtrl.MTRLRegressor(reg_lambda=0.1).fit(expected, y, tasks=task)
        np.testing.assert_allclose(
            model.predict(expected, tasks=task), own.predict(expected, tasks=task), rtol=1e-2, atol=0.05
        )


def test_tasks_with_one_class_are_noted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    label = np.array([0, 1] * 40 + [1] * 40)
    data = pa.table({"t": np.repeat(["u", "v", "w"], 40), "x": rng.normal(size=120), "y": label})
    options = ["--task", "t", "--target", "y", "--lambda", "0.1", "--json"]
    result = run("fit", write(data, tmp_path / "a.csv"), *options, "-o", tmp_path / "m")
    assert result.exit_code == 0, result.output
    assert any("1 of 3 tasks have rows of only one class" in note for note in json.loads(result.stdout)["notes"])


def _with_default(kind: type, **changed: object) -> tuple[object, ...]:
    """The defaults of a constructor with some changes."""
    parameters = list(inspect.signature(kind).parameters.values())
    return tuple(changed.get(one.name, one.default) for one in parameters)


def test_note_when_the_tolerance_is_not_reached(tmp_path: Path, csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MTRLClassifier.__init__, "__defaults__", _with_default(MTRLClassifier, max_rounds=2))
    words = ("--task", "shop", "--target", "verdict", "--drop", "sales", "--lambda", "0.001", "--tol", "1e-6")
    result = run("fit", csv, *words, "--loss", "logistic", "-o", tmp_path / "m")
    assert result.exit_code == 0
    assert "the fit stopped after 2 rounds" in " ".join(result.stdout.split())
    assert "was not reached" in result.stdout


def test_wrong_options_print_one_line_and_write_nothing(tmp_path: Path, csv: Path) -> None:
    """Exit code 1, one line that helps, and nothing written."""
    model = tmp_path / "there.model"
    assert run("fit", csv, *QUICK, "-o", model).exit_code == 0
    before = sorted(tmp_path.iterdir())
    ok = ("--task", "shop", "--target", "sales")
    cases = {
        ("--task", "shp", "--target", "sales"): "there is no column 'shp'; did you mean 'shop'?",
        ("--task", "shop", "--target", "Sales"): "did you mean 'sales'?",
        ("--task", "shop", "--target", "nonsense"): "there is no column 'nonsense'; the columns are shop, size",
        ("--target", "sales"): "the task column is not known; pass --task with one of shop",
        ("--task", "shop"): "the target column is not known; pass --target with one of shop",
        ("--task", "shop", "--target", "shop"): "column 'shop' is in both --task and --target; pass it to one of them",
        (*ok, "--jobs", "0"): "--jobs must not be 0; pass --jobs -1 for all cores",
        (*ok, "--workers", "2"): "--workers requires --engine ray",
        (*ok, "--drop", "colur"): "did you mean 'colour'?",
        (*ok, "--weights", "sizes"): "did you mean 'size'?",
        (*ok, "--loss", "hubber"): "did you mean 'huber'?",
        (*ok, "--loss", "squared=2"): "--loss squared=2: the squared loss has no parameter",
        (*ok, "--loss", "quantile=2"): "between 0 and 1",
        (
            *ok,
            "--loss",
            "hinge",
            "--kind",
            "regression",
        ): "the hinge loss is for classification, which contradicts --kind regression",
        (
            "--task",
            "shop",
            "--target",
            "verdict",
            "--loss",
            "squared",
        ): "needs numbers; for classes, pass --kind classification",
        ("--task", "shop", "--target", "day"): "holds dates",
        ("--task", "shop", "--target", "kg"): "only one value, 7",
        (
            "--task",
            "remark",
            "--target",
            "sales",
        ): "which is too many for tasks; choose another column, or pass --many-tasks",
        ("--task", "shop", "--target", "remark"): "too many for classes",
        (*ok, "-o", str(model)): "already exists",
        (*ok, "-o", str(tmp_path / "no" / "model")): "there is no folder",
        (*ok, "-o", str(tmp_path)): "is a folder",
        (*ok, "-o", str(csv), "--force"): "is an input file",
        (*ok, "--resume", str(tmp_path / "none")): "or leave out --resume to start again",
        (*ok, "--drop", "shop"): "column 'shop' is in both --task and --drop; pass it to one of them",
        (*ok, "--date", "sales"): "column 'sales' is in both --target and --date; pass it to one of them",
        (*ok, "--weights", "sales"): "column 'sales' is in both --target and --weights",
        (*ok, "--number", "colour"): "which is not a number",
        (*ok, *(word for name in ("size", "price", "colour", "open", "day", "verdict") for word in ("--drop", name))): (
            "no column is left to use as a feature"
        ),
    }
    for words, sentence in cases.items():
        words = words if "-o" in words else (*words, "-o", str(tmp_path / "new.model"))
        result = run("fit", csv, *words)
        assert result.exit_code == 1, (words, result.output)
        last = result.stderr.splitlines()[-1]
        assert last.startswith("Error: "), result.stderr
        assert sentence in last
    assert sorted(tmp_path.iterdir()) == before


def test_errors_name_parameters_in_python_and_options_on_the_command_line(csv: Path) -> None:
    with pytest.raises(InputError, match="the target column is not known; pass target with one of shop"):
        prepare(FitRequest([csv], task="shop"))
    with pytest.raises(InputError, match="or pass many_tasks=True to use it"):
        prepare(FitRequest([csv], task="remark", target="sales"))
    assert option(Setting("many_tasks", True)) == "--many-tasks"
    assert option(Setting("missing", "not known")) == "--missing 'not known'"
    with pytest.raises(NotAModelError, match="is not a dmtrl model") as error:
        load(csv)
    assert error.value.path == str(csv)


def test_unusable_files_print_one_line_and_exit_with_1(tmp_path: Path, csv: Path) -> None:
    model = tmp_path / "there.model"
    assert run("fit", csv, *QUICK, "-o", model).exit_code == 0
    files = {
        "header.csv": b"shop,sales,x\n",
        "empty.csv": b"",
        "holes.csv": b"shop,sales,x\n,1,2\na,,2\n",
        "model.csv": model.read_bytes(),
        "inf.csv": b"shop,sales,x\na,1,2\nb,2,inf\na,3,1\n",
        "large.csv": b"shop,sales,x\na,1,2\nb,2,1e300\na,3,1\n",
        "largest.csv": b"shop,sales,x\na,1,2\nb,1e300,2\na,3,1\n",
    }
    words = ("--task", "shop", "--target", "sales", "-o", tmp_path / "new")
    sentences = {
        "header.csv": "has columns but no rows",
        "empty.csv": "is empty",
        "holes.csv": "no row has both",
        "inf.csv": "holds infinity",
        "large.csv": "column 'x' holds numbers as large as 1e+300",
        "largest.csv": "the target 'sales' holds numbers as large as 1e+300",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        error = error_of("fit", tmp_path / name, *words)
        assert isinstance(error, ValueError), name
        assert sentences.get(name, "") in str(error)
    assert isinstance(error_of("fit", model, *words), ValueError)
    assert isinstance(error_of("fit", tmp_path / "nowhere.csv", *words), FileNotFoundError)
    assert not (tmp_path / "new").exists()


def test_max_staleness_reaches_the_estimator(csv: Path) -> None:
    words = {"task": "shop", "target": "sales"}
    table = prepare(FitRequest([csv], **words))
    for reg_lambda in (0.1, None):
        for staleness in (0, 8):
            request = FitRequest([csv], **words, reg_lambda=reg_lambda, max_staleness=staleness)
            assert estimator(table, request).engine.max_staleness == staleness


def test_lost_worker_error_has_a_resume_command_that_works(
    tmp_path: Path, csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers, which are lost again and again; the command that is told then goes on."""
    folder = tmp_path / "it's here"
    folder.mkdir()
    words = ("fit", csv, *QUICK, "--jobs", "2", "--tol", "1e-8", "--no-page", "-o", folder / "m")

    def start(local: LocalOptions, sources: Any, losses: Any, names: Any = None) -> RecoveringEngine:
        fate = dict.fromkeys(range(30, 400), "before")
        return RecoveringEngine(Fragile(sources(local.n_jobs), losses, 2, fate), 9, names)

    with monkeypatch.context() as patch:
        patch.setattr(LocalOptions, "start", start)
        patch.setattr(recovery, "_RETRY_DELAY", 0.0)
        patch.setattr(options, "_DEFAULT_SECONDS", 0.0)
        result = run(*words)
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert re.match(r"Error: worker \d \(tasks '00\d', .*\) was lost 11 times in a row", last)
    advice, option, kept = last.rpartition(" --resume ")
    assert advice.endswith("; continue from its last checkpoint with")
    assert shlex.split(kept) == [newest(str(folder / "m.checkpoint"))]
    resumed, whole = run(*words, option.strip(), *shlex.split(kept)), run(*words[:-1], tmp_path / "whole")
    assert (resumed.exit_code, whole.exit_code) == (0, 0), resumed.output
    assert load(folder / "m").coef_.tobytes() == load(tmp_path / "whole").coef_.tobytes()
    assert [path.name for path in folder.iterdir()] == ["m"]


def test_unexpected_error_keeps_its_traceback(tmp_path: Path, csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **places: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("dmtrl.workflows.fit.fit", broken)
    result = run("fit", csv, *QUICK, "-o", tmp_path / "m")
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(tmp_path: Path, csv: Path) -> None:
    csv.chmod(0)
    result = run("fit", csv, *QUICK, "-o", tmp_path / "m")
    assert result.exit_code == 1
    assert "Permission denied" in result.stderr


def test_too_many_tasks_are_refused_unless_many_tasks(tmp_path: Path) -> None:
    n = 1_000_000
    big = pa.table({"t": np.arange(n), "x": np.arange(n) % 7, "y": np.arange(n) % 11})
    result = run("fit", write(big, tmp_path / "big.parquet"), "--task", "t", "--target", "y", "-o", tmp_path / "m")
    assert result.exit_code == 1
    assert "1,000,000 different values with 1.0 rows each, which is too many for tasks" in result.stderr
    small = big.slice(0, 120).set_column(0, "t", pa.array(np.arange(120) // 2))
    words = ("--task", "t", "--target", "y", "--lambda", "1", "-q", "-o", tmp_path / "m")
    assert run("fit", write(small, tmp_path / "a.parquet"), *words).exit_code == 1
    assert run("fit", tmp_path / "a.parquet", *words, "--many-tasks").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        "fit",
        "fit a.csv --lambda -1",
        "fit a.csv --lambda much",
        "fit a.csv --kind guess",
        "fit a.csv --max-staleness -1",
        "fit --taks x",
        "predict m",
        "predict m a.csv --json",
    ],
)
def test_usage_errors_exit_with_2(words: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 2
    assert "Usage:" in result.stderr
