"""Model files: a round trip gives the same bits, and a file that is not whole is refused in a sentence.
`verify` finds the objective again from data alone."""

import datetime
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler

import dmtrl
from dmtrl import RFF, CustomLoss, MTRLClassifier, MTRLRegressor, NotConvergedWarning, TaskCovariance, get_loss
from dmtrl.estimators.model_file import load, save, verify
from dmtrl.losses import builtin as losses
from dmtrl.relationship import Fixed, Learned, shared

M, N, D = 4, 12, 3
TASKS = np.repeat(np.arange(M), N)
LABELS = {
    "text": np.array(["oslo", "bergen", "trondheim", "ålesund"]),
    "objects": np.array(["oslo", "bergen", "trondheim", "ålesund"], dtype=object),
    "integers": np.array([3, -1, 7, 2**40]),
    "small integers": np.array([3, 1, 7, 9], dtype=np.int16),
    "floats": np.array([0.5, -1.25, 1e300, 3.0]),
    "booleans": np.array([True, False, True, False]),
    "days": np.array(["2020-01-01", "2021-02-03", "1969-01-01", "2020-01-02"], dtype="datetime64[D]"),
    "dates": np.array([datetime.date(2020, 1, day) for day in (4, 3, 2, 1)], dtype=object),
    "bytes": np.array([b"a", b"bc", b"d", b"e"]),
}


def make(kind: str = "regression", seed: int = 0, dtype: Any = float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(M * N, D)) + 3).astype(dtype)
    z = (X * rng.normal(size=(M, D))[TASKS]).sum(axis=1) + rng.normal(size=M * N)
    if kind == "regression":
        return X, z
    rank = (
        z.reshape(M, N).argsort(axis=1).argsort(axis=1).ravel()
    )  # within its task, so that every task has all classes
    return X, np.where(rank >= N // 2, "yes", "no") if kind == "two" else rank // (N // 3)


def keep(model: Any, folder: Path) -> Any:
    model.save(folder / "model.dmtrl") if hasattr(model, "save") else save(model, folder / "model.dmtrl")
    return load(folder / "model.dmtrl")


def assert_same(a: Any, b: Any, where: str = "model") -> None:
    """The same type, and the same bits all the way down."""
    assert type(a) is type(b), where
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes(), where
    elif sparse.issparse(a):
        assert a.format == b.format, where
        assert (a != b).nnz == 0, where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{where}[{i}]")
    elif type(a).__module__.startswith("dmtrl") and not isinstance(a, CustomLoss):
        assert_same(vars(a), vars(b), where)
    elif isinstance(a, float) and math.isnan(a):
        assert math.isnan(b), where
    else:
        assert a == b, where


REGRESSORS = {
    "default": {},
    "tuned": {
        "loss": "huber",
        "reg_lambda": 0.3,
        "common": 0.0,
        "fit_intercept": False,
        "random_state": 3,
        "tol": 1e-5,
    },
    "a loss with a parameter": {"loss": losses.quantile(0.7), "tol": 0.01},
    "one without": {"loss": get_loss("absolute"), "tol": 0.01},
    "a covariance": {"relationship": np.eye(M) + 0.3},
    "a frame's worth of lists": {"relationship": (np.eye(M) + 0.3).tolist()},
    "a covariance of low rank": {"relationship": np.ones((M, M)), "common": 0.0, "fit_intercept": "penalised"},
    "a graph": {"relationship": sparse.csc_matrix(np.ones((M, M)) - np.eye(M))},
    "a graph as array": {"relationship": sparse.coo_array(np.ones((M, M)) - np.eye(M))},
    "a TaskCovariance": {"relationship": TaskCovariance.identity(M)},
    "relationship objects": {"relationship": Learned(0.5), "common": 0.0},
    "a fixed one": {"relationship": shared(M, 0.8), "common": 0.0},
    "a feature map by name": {"feature_map": "rff"},
    "a feature map": {"feature_map": RFF(n_components=20, gamma=0.1, seed=5), "fit_intercept": "penalised"},
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_round_trip_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    X, y = make()
    model = MTRLRegressor(**REGRESSORS[name]).fit(X, y, tasks=TASKS)
    loaded = keep(model, tmp_path)
    assert_same(vars(model), vars(loaded))
    assert_same(model.predict(X, tasks=TASKS), loaded.predict(X, tasks=TASKS))
    assert_same(model.task_covariance_, loaded.task_covariance_)
    again = clone(loaded).fit(X, y, tasks=TASKS)
    assert_same(model.coef_, again.coef_)
    certificate = verify(loaded, X, y, tasks=TASKS)
    assert certificate.primal == pytest.approx(model.certificate_.primal, rel=1e-6)
    assert certificate.dual <= model.certificate_.primal


@pytest.mark.parametrize("labels", LABELS)
def test_task_labels_keep_their_dtype(labels: str, tmp_path: Path) -> None:
    X, y = make()
    tasks = LABELS[labels][TASKS]
    model = MTRLRegressor(tol=0.01).fit(X, y, tasks=tasks)
    loaded = keep(model, tmp_path)
    assert_same(model.tasks_, loaded.tasks_)
    assert_same(model.predict(X, tasks=tasks), loaded.predict(X, tasks=tasks))


@pytest.mark.parametrize(
    "classes",
    [
        np.array(["no", "yes"]),
        np.array(["no", "yes"], dtype=object),
        np.array([-1, 1], dtype=np.int8),
        np.array([False, True]),
        np.array([0.0, 3.0]),
    ],
    ids=lambda classes: str(classes.dtype),
)
def test_classes_keep_their_dtype(classes: np.ndarray, tmp_path: Path) -> None:
    X, y = make("two")
    y = classes[(y == "yes").astype(int)]
    model = MTRLClassifier(tol=0.01).fit(X, y, tasks=TASKS)
    loaded = keep(model, tmp_path)
    assert_same(vars(model), vars(loaded))
    assert_same(model.predict(X, tasks=TASKS), loaded.predict(X, tasks=TASKS))
    assert_same(model.predict_proba(X, tasks=TASKS), loaded.predict_proba(X, tasks=TASKS))
    verify(loaded, X, y, tasks=TASKS)


@pytest.mark.parametrize(
    "shape", ["one task", "three classes", "wide", "sparse", "float32", "low rank", "frame", "weights", "constant"]
)
def test_every_kind_of_fit_can_be_kept_and_verified(shape: str, tmp_path: Path) -> None:
    X, y = make("three" if shape == "three classes" else "two" if shape == "constant" else "regression")
    X = X.astype(np.float32) if shape in ("float32", "low rank") else X
    data: dict[str, Any] = {"X": X, "y": y, "tasks": TASKS}
    model: Any = MTRLClassifier() if shape == "three classes" else MTRLRegressor()
    if shape == "one task":
        data["tasks"] = None
    elif shape == "wide":
        data = {"X": X[:N], "y": y.reshape(M, N).T.copy()}
        data["y"][0, 1] = np.nan
    elif shape == "sparse":
        data["X"] = sparse.csr_matrix(np.where(X > 3, X, 0))
    elif shape == "frame":
        pd = pytest.importorskip("pandas")
        data["X"] = pd.DataFrame(X, columns=list("abc")).assign(school=LABELS["text"][TASKS])
        data["tasks"], model.task_column = None, "school"
    elif shape == "low rank":  # rounding puts W outside the range of Sigma, where the penalty is infinite
        model.set_params(relationship=np.ones((M, M)), fit_intercept="penalised", loss="absolute")
    elif shape == "weights":
        data["sample_weight"] = np.random.default_rng(1).uniform(0, 2, len(y)).round()
    elif shape == "constant":
        model = MTRLClassifier(on_single_class="constant", relationship=np.eye(M) + 0.3)
        y[TASKS == 2] = "no"
    model.fit(**data)
    loaded = keep(model, tmp_path)
    assert_same(vars(model), vars(loaded))
    ask = {key: value for key, value in data.items() if key in ("X", "tasks")}
    assert_same(model.predict(**ask), loaded.predict(**ask))
    rel = 1e-4 if shape in ("float32", "low rank") else 1e-6
    assert verify(loaded, **data).primal == pytest.approx(model.certificate_.primal, rel=rel)


@pytest.mark.parametrize("loss", sorted(losses.BUILTIN))
@pytest.mark.parametrize("fit_intercept", [True, False, "penalised"])
def test_verify_finds_the_certificate_again(loss: str, fit_intercept: Any) -> None:
    classify = losses.BUILTIN[loss]().kind == "classification"
    X, y = make("two" if classify else "regression")
    X, y = X - 3, np.round(np.exp(y / 10)) if loss == "poisson" else y
    kind = MTRLClassifier if classify else MTRLRegressor
    model = kind(loss=loss, fit_intercept=fit_intercept, reg_lambda=0.1).fit(X, y, tasks=TASKS)
    before = {key: value for key, value in vars(model).items()}
    certificate = verify(model, X, y, tasks=TASKS)
    # with a common part the penalty is bounded from above by an iteration, which verify starts elsewhere
    assert certificate.primal == pytest.approx(model.certificate_.primal, rel=1e-6)
    assert certificate.dual <= model.certificate_.primal * (1 + 1e-9)
    assert model.certificate_.dual <= certificate.primal * (1 + 1e-9)
    assert certificate.relative_gap < 10 * model.tol
    assert all(vars(model)[key] is value for key, value in before.items()), "verify must not touch the model"


@pytest.mark.parametrize("common", [1.0, 10.0])
def test_verify_accepts_models_with_a_strong_common_part(common: float) -> None:
    """The stored primal is an upper bound, because the common part of the weights comes from an iteration."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, tasks = rng.normal(size=(60, 4)), np.arange(60) % 6
        y = X @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=60)
        for lam in (1.0, 0.1, 0.01, 0.001):
            model = MTRLRegressor(reg_lambda=lam, common=common).fit(X, y, tasks=tasks)
            found = verify(model, X, y, tasks=tasks)
            assert model.certificate_.dual <= found.primal * (1 + 1e-9)
            assert found.primal <= model.certificate_.primal * (1 + 1e-6)


def test_verify_agrees_with_the_objective_written_down_by_hand() -> None:
    """Ridge for every task by itself: mean squared error over two, plus lambda m |w|^2 / 2."""
    X, y = make()
    model = MTRLRegressor(relationship="independent", fit_intercept=False, common=0.0).fit(X, y, tasks=TASKS)
    residual = y - model.predict(X, tasks=TASKS)
    objective = sum((residual[i == TASKS] ** 2).mean() / 2 for i in range(M)) + 0.1 * M * (model.coef_**2).sum() / 2
    optimum = 0.0
    for i in range(M):
        A, b = X[i == TASKS], y[i == TASKS]
        w = np.linalg.solve(A.T @ A / N + 0.1 * M * np.eye(D), A.T @ b / N)
        optimum += ((b - A @ w) ** 2).mean() / 2 + 0.1 * M * (w @ w) / 2
    certificate = verify(model, X, y, tasks=TASKS)
    assert certificate.primal == pytest.approx(objective, rel=1e-9)
    assert certificate.dual * (1 - 1e-9) <= optimum <= certificate.primal * (1 + 1e-9)


def test_verify_notices_other_data_and_a_changed_model() -> None:
    X, y = make()
    model = MTRLRegressor().fit(X, y, tasks=TASKS)
    order = np.random.default_rng(2).permutation(len(y))
    verify(model, X[order], y[order], tasks=TASKS[order])
    with pytest.raises(ValueError, match=r"the objective of the model is .*; the data differ from the data of the fit"):
        verify(model, X, y + 0.1 * (np.arange(len(y)) == 5), tasks=TASKS)
    with pytest.raises(ValueError, match="the data differ"):
        verify(model, X, y, tasks=TASKS, sample_weight=np.arange(len(y)) + 1.0)
    with pytest.raises(ValueError, match="other tasks or classes than the model"):
        verify(model, X, y, tasks=TASKS + 1)
    with pytest.raises(NotFittedError):
        verify(MTRLRegressor(), X, y, tasks=TASKS)
    certificate, coef = model.certificate_, model.coef_
    model.coef_ = coef * 1.01
    with pytest.raises(ValueError, match="or the model was changed"):
        verify(model, X, y, tasks=TASKS)
    model.coef_ = coef
    model.certificate_ = replace(certificate, dual=certificate.primal * 1.1)
    with pytest.raises(ValueError, match=r"can be reached \(stored lower bound"):
        verify(model, X, y, tasks=TASKS)
    X, y = make("two")
    classifier = MTRLClassifier(tol=0.01).fit(X, y, tasks=TASKS)
    with pytest.raises(ValueError, match="other tasks or classes than the model"):
        verify(classifier, X, y == "yes", tasks=TASKS)


def test_verify_shows_what_a_fit_that_stopped_early_is_worth() -> None:
    X, y = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        model = MTRLRegressor(max_rounds=2).fit(X, y, tasks=TASKS)
    model.max_rounds = 1000
    assert verify(model, X, y, tasks=TASKS).dual > model.certificate_.dual


def test_a_custom_loss_stays_outside_the_file(tmp_path: Path) -> None:
    """A model file holds no code; that a fit with such a loss works is tested elsewhere and takes long to compile."""
    own = CustomLoss("mine", max, max, max, max, smoothness=1.0)  # type: ignore[arg-type]
    X, y = make()
    model = MTRLRegressor().fit(X, y, tasks=TASKS).set_params(loss=own)
    loaded = keep(keep(model, tmp_path), tmp_path)
    assert (loaded.loss.name, loaded.loss.smoothness, loaded.loss.lipschitz) == ("mine", 1.0, math.inf)
    assert_same(model.predict(X, tasks=TASKS), loaded.predict(X, tasks=TASKS))
    with pytest.raises(ValueError, match=r"does not hold the code of a custom loss; call set_params\(loss=...\)"):
        clone(loaded).fit(X, y, tasks=TASKS)
    with pytest.raises(ValueError, match="code of a custom loss"):
        verify(loaded, X, y, tasks=TASKS)
    verify(loaded.set_params(loss="squared"), X, y, tasks=TASKS)


def test_what_only_fit_needs_is_left_behind(tmp_path: Path) -> None:
    X, y = make()
    seen: list[Any] = []
    model = MTRLRegressor(callbacks=[seen.append], random_state=np.random.RandomState(1)).fit(X, y, tasks=TASKS)
    loaded = keep(model, tmp_path)
    assert seen
    assert loaded.callbacks is None
    assert loaded.random_state is None
    assert callable(model.callbacks[0]), "the model itself keeps its callbacks"


def test_what_is_not_data_is_refused(tmp_path: Path) -> None:
    X, y = make()
    path = tmp_path / "model.dmtrl"
    with pytest.raises(
        ValueError,
        match=r"feature_map is a sklearn.*StandardScaler, and a model file holds only",
    ):
        save(MTRLRegressor(feature_map=StandardScaler()).fit(X, y, tasks=TASKS), path)

    class Mine(MTRLRegressor):
        pass

    for other in (Mine().fit(X, y, tasks=TASKS), StandardScaler().fit(X), 3):
        with pytest.raises(ValueError, match="save supports MTRLRegressor"):
            save(other, path)

    class MyRelation(Learned):
        pass

    with pytest.raises(ValueError, match=r"relationship is a .*MyRelation"):
        save(MTRLRegressor(relationship=MyRelation(0.0), common=0.0).fit(X, y, tasks=TASKS), path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["MTRLRegressorCV", "MTRLClassifierCV"])
def test_a_chosen_model_keeps_what_it_was_chosen_from(name: str, tmp_path: Path) -> None:
    X, y = make("two" if "Classifier" in name else "regression")
    model = getattr(dmtrl, name)(lambdas=[1.0, 0.1], cv=2).fit(X, y, tasks=TASKS)
    loaded = keep(model, tmp_path)
    assert_same(vars(model), vars(loaded))
    assert_same(model.predict(X, tasks=TASKS), loaded.predict(X, tasks=TASKS))
    assert verify(loaded, X, y, tasks=TASKS).primal == pytest.approx(model.certificate_.primal, rel=1e-6)


def test_a_loaded_model_goes_on_where_it_stopped(tmp_path: Path) -> None:
    X, y = make()
    model = MTRLRegressor(warm_start=True).fit(X, y, tasks=TASKS)
    loaded = keep(model, tmp_path)
    assert_same(model.fit(X, y + 0.01, tasks=TASKS).coef_, loaded.fit(X, y + 0.01, tasks=TASKS).coef_)


def test_the_top_level_offers_it(tmp_path: Path) -> None:
    X, y = make()
    model = MTRLRegressor(tol=0.01).fit(X, y, tasks=TASKS)
    model.save(tmp_path / "model.dmtrl")
    assert dmtrl.verify(dmtrl.load(tmp_path / "model.dmtrl"), X, y, tasks=TASKS).gap >= 0


def test_fixed_relationships_come_back_as_they_were(tmp_path: Path) -> None:
    X, y = make()
    given = Fixed(TaskCovariance.from_dense(np.eye(M) + 0.5), 0.25, "mine")
    model = MTRLRegressor(relationship=given, common=0.0).fit(X, y, tasks=TASKS)
    loaded = keep(model, tmp_path)
    assert (loaded.relationship.name, loaded.relationship.tau) == ("mine", 0.25)
    assert verify(loaded, X, y, tasks=TASKS).primal == pytest.approx(model.certificate_.primal, rel=1e-6)
