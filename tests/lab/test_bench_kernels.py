"""`dmtrl bench kernels`: optima are verified, qualities are checked, and a solver that misses one is reported."""

import itertools

import cvxpy as cp
import numpy as np
import pytest
from scipy import sparse

from dmtrl.lab.bench import competitors, kernels
from dmtrl.lab.bench.competitors import CERTIFIED, DMTRL, LIBLINEAR, SNAPML, Fit, Options, fastest
from dmtrl.lab.bench.optimum import Optimum, Task, optimum
from dmtrl.lab.bench.timing import interleaved, read_bandwidth


def small_task(loss: str, n: int = 120, d: int = 8, lam: float = 0.01) -> Task:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, d)).astype(np.float32)
    y = np.where(X @ rng.standard_normal(d) + rng.standard_normal(n) > 0, 1.0, -1.0)
    return Task(X, X.astype(float), y, loss, lam)


def as_sparse(task: Task) -> Task:
    X = sparse.csr_matrix(task.X)
    return Task(X, X.astype(float), task.y, task.loss, task.lam)


def test_the_objective_by_hand() -> None:
    X = np.array([[1.0, 0.0], [0.0, 2.0]], dtype=np.float32)
    y, w = np.array([1.0, -1.0]), np.array([0.5, 1.0])
    # margins 0.5 and -2
    assert Task(X, X.astype(float), y, "hinge", 0.1).objective(w) == pytest.approx((0.5 + 3.0) / 2 + 0.05 * 1.25)
    logistic = (np.log1p(np.exp(-0.5)) + np.log1p(np.exp(2.0))) / 2
    assert Task(X, X.astype(float), y, "logistic", 0.1).objective(w) == pytest.approx(logistic + 0.05 * 1.25)


@pytest.mark.parametrize("loss", kernels.LOSSES)
def test_the_optimum_is_that_of_cvxpy(loss: str) -> None:
    task = small_task(loss)
    w = cp.Variable(8)
    margin = cp.multiply(task.y, task.X64 @ w)
    each = cp.pos(1 - margin) if loss == "hinge" else cp.logistic(-margin)
    value = cp.Problem(cp.Minimize(cp.sum(each) / 120 + task.lam / 2 * cp.sum_squares(w))).solve(solver=cp.CLARABEL)
    best = optimum(task)
    assert best.lower <= best.value
    assert best.accuracy <= 1e-9
    assert best.value == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("loss", kernels.LOSSES)
def test_dense_and_sparse_rows_have_one_optimum(loss: str) -> None:
    dense, other = optimum(small_task(loss)), optimum(as_sparse(small_task(loss)))
    assert other.accuracy <= 1e-8
    assert other.value == pytest.approx(dense.value, rel=1e-8)


def test_the_optimum_where_columns_are_zero_and_rows_are_few() -> None:
    task = small_task("hinge", n=20, d=40)
    X = task.X64.copy()
    X[:, ::3] = 0.0
    best = optimum(Task(X.astype(np.float32), X, task.y, "hinge", 1e-3))
    assert best.accuracy <= 1e-6


@pytest.mark.parametrize("loss", kernels.LOSSES)
@pytest.mark.parametrize("layout", [small_task, lambda loss: as_sparse(small_task(loss))], ids=["dense", "sparse"])
def test_every_solver_minimises_the_same_objective(loss: str, layout) -> None:
    task = layout(loss)
    best = optimum(task)
    for name in competitors.installed():
        for solver in competitors.solvers(name, loss):
            fit = competitors.FITS[name](task, Options(solver, 1e-7, 2000))
            assert -1e-6 <= task.objective(fit.w) / best.value - 1 <= 1e-2, (name, solver)


def test_snap_ml_leaves_the_processor_as_it_was() -> None:
    if SNAPML not in competitors.installed():
        pytest.skip("Snap ML is not installed")  # not importorskip, which would load it here
    for _ in range(2):
        competitors.snapml_fit(small_task("hinge"), Options("hinge dual", 1e-3, 10))
        assert np.float64(1e-320) * 0.5 > 0, "small numbers have become zero"


def approaching(per_iteration: float, floor: float = 0.0):
    """A solver whose relative error falls by a factor in every iteration, down to a floor; it stops at its tol."""

    def fit(task: Task, options: Options) -> Fit:
        for iteration in itertools.count(1):
            error = max(per_iteration**iteration, floor)
            if error <= options.tol or iteration >= options.iterations:
                return Fit(np.array([error]), iteration)

    return fit


class ByNumber(Task):
    """The objective is 1 plus the one weight, so the optimum is 1."""

    def objective(self, w: np.ndarray) -> float:
        return 1.0 + float(w[0])


@pytest.fixture
def numbers() -> ByNumber:
    task = small_task("hinge")
    return ByNumber(task.X, task.X64, task.y, task.loss, task.lam)


def test_the_fewest_iterations_that_are_enough_are_found(numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competitors, "FITS", {LIBLINEAR: approaching(0.8)})
    found = fastest(LIBLINEAR, numbers, Optimum(1.0, 1.0), (1e-3, 1e-4, 1e-5), limit=10.0)
    for eps, one in found.items():
        least = int(np.ceil(np.log(eps) / np.log(0.8)))
        assert one.reached <= eps
        assert least <= one.fit.iterations <= 1.15 * least


def test_a_solver_that_does_not_reach_the_quality_is_said_not_to(numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = {DMTRL: approaching(0.5), LIBLINEAR: approaching(0.8, floor=5e-4)}
    monkeypatch.setattr(competitors, "FITS", fits)
    monkeypatch.setattr(kernels, "FITS", fits)
    monkeypatch.setattr(kernels, "optimum", lambda task: Optimum(1.0, 1.0))
    figures = kernels._measure(numbers, list(fits), quick=True, repeats=2)
    assert figures["seconds"][LIBLINEAR]["0.001"] is not None
    assert figures["seconds"][LIBLINEAR]["0.0001"] is None
    assert figures["options"][LIBLINEAR]["0.0001"] == "not reached"
    rows = {(row[1], row[2]): row for row in kernels.table_rows(figures)}
    assert rows["0.0001", LIBLINEAR][3].startswith("> ")
    assert rows["0.0001", LIBLINEAR][5] == "5.0e-04: not reached"
    assert "not reached" not in " ".join(rows["0.001", LIBLINEAR])


@pytest.mark.parametrize("line", ["hinge:400x20", "logistic:200x10000"])
def test_what_is_timed_has_the_quality(line: str) -> None:
    figures = kernels.measure(line, quick=True, repeats=2)
    assert {DMTRL, CERTIFIED, LIBLINEAR} <= set(figures["seconds"])
    assert figures["bandwidth"] > 0
    for name, by_eps in figures["seconds"].items():
        for eps, seconds in by_eps.items():
            assert (seconds is not None) == (figures["reached"][name][eps] <= float(eps))
            if seconds is not None:
                assert len(seconds) == 2
                assert min(seconds) >= 0
    assert all(figures["seconds"][CERTIFIED].values()), "what dmtrl certifies it has reached"
    text = kernels.table([figures])
    assert len(text.rows) == 3 * len(figures["seconds"])
    at_a_glance = kernels.summary([figures])
    assert [row[1] for row in at_a_glance.rows] == ["0.001", "0.0001", "1e-05"]
    column = at_a_glance.columns.index(LIBLINEAR)
    for row in at_a_glance.rows:
        theirs = next(one for one in text.rows if one[1] == row[1] and one[2] == LIBLINEAR)
        assert row[column] == theirs[4]


def test_a_package_that_is_missing_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competitors, "find_spec", lambda name: None)
    assert SNAPML not in competitors.installed()
    assert competitors.not_installed() == ['Snap ML is left out: pip install "dmtrl[bench]"']


def test_the_tasks_are_as_the_lines_say() -> None:
    dense, text = kernels.make_task("hinge:500x30", C=2.0), kernels.make_task("logistic:400x10000")
    assert dense.X.shape == (500, 30)
    assert dense.X.dtype == np.float32
    assert dense.lam == pytest.approx(1 / 1000)
    assert np.mean((dense.X64**2).sum(axis=1)) == pytest.approx(1, rel=1e-3)
    assert text.X.shape == (400, 10000)
    assert 0.004 <= text.X.nnz / 4e6 <= 0.008
    np.testing.assert_allclose(text.X64.multiply(text.X64).sum(axis=1), 1, rtol=1e-5)
    for task in (dense, text):
        assert set(task.y) == {-1.0, 1.0}
        assert 0.3 <= np.mean(task.y > 0) <= 0.7


@pytest.mark.parametrize("line", ["hinge", "squared:10x10", "hinge:tenxten"])
def test_a_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="a line must be a loss"):
        kernels.make_task(line)


def test_repeats_end_at_the_limit_but_not_before_two() -> None:
    calls: list[int] = []
    timed = interleaved({"a": lambda: calls.append(1)}, 50, warm_up=False, limit=0.0)
    assert len(timed.seconds["a"]) == len(calls) == 2


def test_bandwidth_is_a_number_of_bytes_per_second() -> None:
    assert read_bandwidth(megabytes=8, repeats=2) > 0
