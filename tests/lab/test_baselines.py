"""The baselines against scikit-learn, cvxpy and closed forms, and against the library's own alternation."""

import re

import cvxpy as cp
import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from dmtrl import (
    CustomLoss,
    Execution,
    NotConvergedWarning,
    Problem,
    RoundRecord,
    Settings,
    TaskCovariance,
    TaskData,
    solve,
)
from dmtrl.losses import BUILTIN
from dmtrl.relationship import Learned
from dmtrl_lab.baselines import (
    Fitted,
    NotEnoughMemoryError,
    available_memory,
    centralised_mtrl,
    ssdca,
)
from support.oracles import optimum
from support.problems import mean_losses, random_problem, rows_of

LOSSES = ["hinge", "squared", "logistic"]
TIGHT = Settings(tol=1e-9, max_rounds=20_000)


def by_scikit_learn(loss: str, X: np.ndarray, y: np.ndarray, weight: np.ndarray, ridge: float) -> np.ndarray:
    """argmin_w sum_j weight_j l(w.x_j, y_j) + (ridge / 2) |w|^2."""
    if loss == "squared":
        return Ridge(alpha=ridge, fit_intercept=False, tol=1e-12).fit(X, y, sample_weight=weight).coef_
    kind = {
        "logistic": lambda: LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-12, max_iter=10_000),
        "hinge": lambda: LinearSVC(C=1 / ridge, loss="hinge", fit_intercept=False, tol=1e-10, max_iter=2_000_000),
    }[loss]()
    return kind.fit(X, y, sample_weight=weight).coef_[0]


def by_cvxpy(data: TaskData, loss: str, lam: float, root: np.ndarray) -> float:
    """The W-step optimum for Sigma = root root^T: W = root A has tr(W^T Sigma^-1 W) = |A|^2 at best."""
    A = cp.Variable((root.shape[1], data.X.shape[1]))
    total = lam / 2 * cp.sum_squares(A)
    for i in range(data.m):
        X, y = np.asarray(data.X[rows_of(data, i)]), data.y[rows_of(data, i)]
        z = X @ (root @ A)[i]
        p = np.ones(len(y)) if data.sample_weight is None else data.sample_weight[rows_of(data, i)]
        losses = {
            "hinge": lambda z=z, y=y: cp.pos(1 - cp.multiply(y, z)),
            "squared": lambda z=z, y=y: cp.square(z - y) / 2,
            "logistic": lambda z=z, y=y: cp.logistic(-cp.multiply(y, z)),
        }[loss]()
        total = total + (p / p.sum()) @ losses
    return optimum(cp.Minimize(total))


def joint_objective(data: TaskData, W: np.ndarray, loss: str, lam: float) -> float:
    return mean_losses(data, W, loss) + lam / 2 * np.linalg.svd(W, compute_uv=False).sum() ** 2


def bits(fitted: Fitted) -> bytes:
    return fitted.W.tobytes() + fitted.covariance.dense().tobytes()


@pytest.mark.parametrize("loss", LOSSES)
def test_independent_tasks_are_scikit_learn_on_each_task(loss: str) -> None:
    data, lam = random_problem(loss, rows=40, weighted=True), 0.05
    fitted = solve(Problem.of(data, loss=loss, reg_lambda=lam, relationship="independent"), Execution(settings=TIGHT))
    for i in range(data.m):
        rows = rows_of(data, i)
        p = data.sample_weight[rows] / data.sample_weight[rows].sum()
        expected = by_scikit_learn(loss, data.X[rows], data.y[rows], p, lam * data.m)
        assert np.allclose(fitted.W[i], expected, atol=1e-4)
    assert np.allclose(fitted.covariance.dense(), np.eye(data.m) / data.m)


def run(method: str, data: TaskData, loss: str, lam: float, **knobs: object) -> Fitted:
    if method == "ssdca":
        return ssdca(data, loss, lam, **({"passes": 30_000} | knobs))
    return centralised_mtrl(data, loss, lam, **knobs)


METHODS = ["centralised_mtrl", "ssdca"]


@pytest.mark.parametrize("singular", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_w_step_optimum_for_a_given_covariance(loss: str, singular: bool) -> None:
    data, lam = random_problem(loss, weighted=True), 0.05
    root = np.random.default_rng(5).normal(size=(data.m, 2 if singular else data.m))
    root /= np.linalg.norm(root)
    best = by_cvxpy(data, loss, lam, root)
    covariance = TaskCovariance.from_dense(root @ root.T)
    by_library = solve(Problem.of(data, loss=loss, reg_lambda=lam, relationship=covariance), Execution(settings=TIGHT))
    for method in METHODS:
        fitted = run(method, data, loss, lam, relationship=covariance, w_tol=1e-7)
        assert fitted.certificate.primal == pytest.approx(best, rel=1e-6)
        assert fitted.certificate.dual <= best * (1 + 1e-6)
        assert fitted.history[-1].w_gap <= 1e-7
        assert fitted.certificate.primal == pytest.approx(by_library.certificate.primal, rel=1e-6)
        assert np.allclose(fitted.W, by_library.W, atol=2e-2)
        assert np.allclose(fitted.covariance.dense(), root @ root.T, atol=1e-12)


def ends_of_w_steps(history: list[RoundRecord]) -> list[float]:
    return [record.objective for record in history if record.omega]


def ends_in_the_library(data: TaskData, loss: str, lam: float, omega_steps: int, settings: Settings) -> list[float]:
    """The joint objective at the end of each W-step of the library's alternation, stopped after `omega_steps`."""
    rounds: list[RoundRecord] = []

    def enough(record: RoundRecord) -> None:
        rounds.append(record)
        if len(ends_of_w_steps(rounds)) == omega_steps:
            raise StopIteration

    with pytest.raises(StopIteration):
        solve(Problem.of(data, loss=loss, reg_lambda=lam), Execution(settings=settings, callbacks=[enough]))
    return ends_of_w_steps(rounds)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_same_alternation_as_the_library(loss: str) -> None:
    """With every W-step solved tightly, P Omega-steps lead to one place, whoever takes them."""
    data, lam, omega_steps = random_problem(loss, m=4, d=6, rows=25), 0.02, 4
    knobs = {"rho": "spectral", "sampling": "shuffled", "max_passes": 5}
    settings = Settings.paper(T=3000, P=omega_steps, w_tol=1e-7, **knobs)
    expected = ends_in_the_library(data, loss, lam, omega_steps, settings)
    joint = solve(
        Problem.of(data, loss=loss, reg_lambda=lam), Execution(settings=Settings(tol=1e-6, max_rounds=5000))
    ).certificate
    for method in METHODS:
        fitted = run(method, data, loss, lam, omega_steps=omega_steps, w_tol=1e-7)
        assert all(record.w_gap <= 1e-7 for record in fitted.history if record.omega)
        assert ends_of_w_steps(fitted.history) == pytest.approx(expected, rel=1e-4)
        assert joint_objective(data, fitted.W, loss, lam) == pytest.approx(fitted.certificate.primal, rel=1e-9)
        assert fitted.certificate.dual <= joint.primal
        assert fitted.certificate.primal >= joint.dual


def test_smoothing_means_what_it_means_in_the_settings() -> None:
    data, lam = random_problem("squared", m=6, d=3, rows=25), 0.05
    knobs = {"w_rounds": 3000, "max_rounds": 9000, "w_tol": 1e-9, "tol": 0.0}
    settings = Settings(method="dual", smoothing=0.2, smoothing_decay=1.0, **knobs)
    expected = ends_in_the_library(data, "squared", lam, 3, settings)
    for method in METHODS:
        fitted = run(method, data, "squared", lam, omega_steps=3, w_tol=1e-9, smoothing=0.2)
        assert ends_of_w_steps(fitted.history) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", BUILTIN)
def test_every_built_in_loss_reaches_its_w_step_optimum(loss: str) -> None:
    """The gap is the proof: it bounds the distance to the optimum."""
    data = random_problem(loss, m=3, d=4, rows=20)
    settings = Settings(tol=1e-7, max_rounds=5000)
    W = solve(
        Problem.of(data, loss=loss, reg_lambda=0.1, relationship="independent"), Execution(settings=settings)
    ).W  # Sigma is still I / m
    for method in METHODS:
        fitted = run(method, data, loss, 0.1, omega_steps=1, w_tol=1e-5)
        (end,) = [record for record in fitted.history if record.omega]
        assert -1e-12 <= end.w_gap <= 1e-5
        assert end.objective == pytest.approx(joint_objective(data, W, loss, 0.1), rel=5e-3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", METHODS)
def test_one_task_is_scikit_learn(method: str, loss: str) -> None:
    data, lam = random_problem(loss, m=1, rows=50), 0.1
    n = len(data.y)
    fitted = run(method, data, loss, lam, omega_steps=1, w_tol=1e-10)
    expected = by_scikit_learn(loss, data.X, data.y, np.full(n, 1 / n), lam)
    assert np.allclose(fitted.W[0], expected, atol=1e-4)
    assert fitted.certificate.relative_gap <= 1e-9  # with one task the joint problem is the W-step


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("loss", ["hinge", "squared"])
@pytest.mark.parametrize("method", METHODS)
def test_sparse_equals_dense(method: str, loss: str, dtype: type) -> None:
    rows = random_problem(loss, m=3, rows=30, csr=True, dtype=dtype)
    full = TaskData(rows.X.toarray(), rows.y, None, rows.starts, rows.names)
    assert sparse.issparse(rows.X)
    a, b = (run(method, data, loss, 0.05, omega_steps=2, w_tol=1e-6) for data in (rows, full))
    assert a.certificate.primal == pytest.approx(b.certificate.primal, rel=1e-5)


def test_a_badly_conditioned_kernel_matrix_gives_the_closed_form() -> None:
    """Rows of very different length and a weak lambda."""
    data = random_problem("squared", m=3, d=8, rows=40)
    X = data.X * np.logspace(-3, 3, 8)
    data = TaskData(X, data.y, None, data.starts, data.names)
    sigma, lam = np.full((3, 3), 0.3) + 0.1 * np.eye(3), 1e-4
    fitted = centralised_mtrl(data, "squared", lam, relationship=sigma, w_tol=1e-6)
    # closed form: each entry of vec(W) has the precision Sigma^-1 times lambda, and sees its own task's rows
    precision = lam * np.kron(np.linalg.inv(sigma / np.trace(sigma)), np.eye(8))
    moment = np.zeros(24)
    for i in range(3):
        rows, own = rows_of(data, i), slice(8 * i, 8 * i + 8)
        n = rows.stop - rows.start
        precision[own, own] += X[rows].T @ X[rows] / n
        moment[own] = X[rows].T @ data.y[rows] / n
    scale = 1 / np.sqrt(np.diag(precision))
    W = (scale * np.linalg.solve(precision * np.outer(scale, scale), scale * moment)).reshape(3, 8)
    predictions = [np.concatenate([X[rows_of(data, i)] @ V[i] for i in range(3)]) for V in (W, fitted.W)]
    assert np.allclose(*predictions, atol=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "squared"])
def test_a_kernel_matrix_that_does_not_fit_is_refused(loss: str) -> None:
    data = random_problem(loss)
    with pytest.raises(NotEnoughMemoryError) as error:
        centralised_mtrl(data, loss, 0.1, memory_limit=1000)
    assert isinstance(error.value, MemoryError)
    message = str(error.value)
    assert f"{len(data.y):,} rows" in message
    assert len(re.findall(r"[\d.]+ GiB", message)) == 2
    needed = len(data.y) ** 2 * (16 if loss == "squared" else 4.25)
    assert centralised_mtrl(data, loss, 0.1, omega_steps=1, memory_limit=needed).history


def test_a_hundred_times_the_memory_of_this_machine_is_refused_before_it_is_taken() -> None:
    available = available_memory()
    if available is None:
        pytest.skip("the system does not say how much memory is available")
    n = int(np.sqrt(100 * available / 4))
    tall = sparse.csr_matrix((n, 1))
    data = TaskData.from_long(tall, np.where(np.arange(n) % 2, 1.0, -1.0))
    with pytest.raises(NotEnoughMemoryError, match=f"{n:,} rows"):
        centralised_mtrl(data, "hinge", 0.1)


@pytest.mark.parametrize("method", METHODS)
def test_watch_sees_every_record_and_its_weights(method: str) -> None:
    data, seen = random_problem("hinge", rows=30), []
    fitted = run(
        method, data, "hinge", 0.05, omega_steps=3, w_tol=1e-4, watch=lambda record, W: seen.append((record, W.copy()))
    )
    assert [record for record, _ in seen] == fitted.history
    assert sum(record.omega for record in fitted.history) == 3
    for record, W in seen:
        assert joint_objective(data, W, "hinge", 0.05) == pytest.approx(record.objective, rel=1e-9)
    assert fitted.certificate.primal == min(record.objective for record in fitted.history)
    assert fitted.certificate.dual == max(record.dual for record in fitted.history)


def test_the_time_of_watch_is_in_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only watch moves: then no record has taken any time."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    data = random_problem("hinge")
    fitted = ssdca(
        data, "hinge", 0.1, omega_steps=2, passes=3, watch=lambda record, W: clock.__setitem__(0, clock[0] + 5.0)
    )
    assert clock[0] == 5.0 * len(fitted.history)
    assert all(record.seconds == 0 for record in fitted.history)


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides_the_bits(method: str) -> None:
    data = random_problem("logistic", rows=20)
    a, b, c = (bits(run(method, data, "logistic", 0.02, omega_steps=2, w_tol=1e-3, seed=seed)) for seed in (3, 3, 4))
    assert a == b
    assert a != c


def test_ssdca_ends_a_w_step_after_its_passes() -> None:
    fitted = ssdca(random_problem("hinge"), "hinge", 1e-4, omega_steps=3, passes=4)
    assert [record.omega for record in fitted.history] == [False, False, False, True] * 3
    assert all(record.passes == 1 for record in fitted.history)


def test_a_w_step_that_is_not_solved_warns() -> None:
    with pytest.warns(NotConvergedWarning, match="stopped after 2 passes at a relative gap"):
        centralised_mtrl(random_problem("logistic"), "logistic", 1e-6, w_tol=1e-12, omega_steps=1, max_passes=2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"lam": -1.0}, "reg_lambda must be positive and finite, got -1.0"),
        ({"lam": np.nan}, "reg_lambda must be positive"),
        ({"omega_steps": 0}, "omega_steps must be at least 1, got 0"),
        ({"w_tol": -1e-3}, "w_tol must be"),
        ({"smoothing": -1.0}, "smoothing must be at least 0"),
        ({"loss": "hing"}, "unknown loss 'hing'"),
        ({"loss": "hinge"}, "task '0', row 0: the hinge loss needs labels -1 and \\+1"),
        ({"loss": CustomLoss("mine", abs, abs, abs, abs)}, "support built-in losses only, got 'mine'"),
        ({"relationship": Learned(tau=1.0)}, "support neither a common component nor a free intercept"),
        ({"relationship": np.eye(7)}, "has 7 tasks, the data has 4"),
    ],
)
def test_bad_input_is_refused(method: str, knobs: dict[str, object], sentence: str) -> None:
    settings = {"loss": "squared", "lam": 0.1} | knobs
    with pytest.raises(ValueError, match=sentence):
        run(method, random_problem("squared"), **settings)


@pytest.mark.parametrize("method", METHODS)
def test_rows_without_weight_change_nothing(method: str) -> None:
    data = random_problem("squared", rows=20)
    weight = np.ones(len(data.y))
    weight[::3] = 0.0
    kept = weight > 0
    task = np.repeat(np.arange(data.m), np.diff(data.starts))
    some = TaskData(data.X, np.where(kept, data.y, 1e6), weight, data.starts, data.names)
    less = TaskData.from_long(data.X[kept], data.y[kept], task[kept])
    a, b = (
        ends_of_w_steps(run(method, one, "squared", 0.1, omega_steps=2, w_tol=1e-8).history) for one in (some, less)
    )
    assert a == pytest.approx(b, rel=1e-5)
    with pytest.raises(ValueError, match="task '0' has a total sample weight of zero"):
        run(method, TaskData(data.X, data.y, np.where(task == 0, 0.0, 1.0), data.starts, data.names), "squared", 0.1)
