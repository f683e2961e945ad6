"""Growth: no (m, m) array on any path, memory in proportion to the data, and blocked products against plain ones."""

import copy
import json
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dmtrl import Execution, LocalOptions, MTRLClassifier, MTRLRegressor, Problem, load
from dmtrl.data.coordinates import Coordinates
from dmtrl.data.task_data import TaskData
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.estimators.problem import task_data
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.numerics import rowwise
from dmtrl.relationship import Learned, shared
from dmtrl.relationship.covariance import DENSE_LIMIT, TaskCovariance
from dmtrl.relationship.nuclear import nuclear_prox
from dmtrl.relationship.similarity import nearest_tasks, strongest_pairs, unit_vectors
from dmtrl.relationship.spectrum import nuclear_norm
from dmtrl.report.model_page import model_facts
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings
from dmtrl_lab.bench import memory, scale, scale_run
from dmtrl_lab.cli.main import main
from support.solving import solve_data

M, ROWS, D = 6000, 4, 5  # more tasks than DENSE_LIMIT


@contextmanager
def at_most(limit: float) -> Iterator[None]:
    """Fails if more bytes than this are ever held at a time, of what is allocated here."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"{peak / 2**20:.0f} MiB were held, {limit / 2**20:.0f} are allowed"


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # a few rounds need not
        yield


LIMIT = M * M / 2  # half of what an (m, m) array of single bytes takes


def _rows(classes: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(M * ROWS, D)), rng.permutation(np.repeat(np.arange(M), ROWS))
    y = X @ rng.normal(size=D) + 0.1 * rng.normal(size=len(X))
    if not classes:
        return X, y, tasks
    y, order = y > 0, np.argsort(tasks)
    y[order[::ROWS]], y[order[1::ROWS]] = True, False  # both classes in every task
    return X, y, tasks


def _regressor(**more: object) -> MTRLRegressor:
    return MTRLRegressor(tol=0.1, **more)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Before memory is traced, which makes a compiler very slow."""
    X, y, codes = scale_run.make(3, 6, 4, "float64", "hinge")
    for more in ({}, {"workers": 2, "shards": 2}, {"settings": Settings(tol=0.1, method="dual")}):
        solve_data(TaskData.from_long(X, y, codes), loss="hinge", reg_lambda=1.0, **more)
    _regressor().fit(X, y, tasks=codes)
    MTRLClassifier(tol=0.3).fit(X, y, tasks=codes)


@pytest.fixture(scope="module")
def fitted() -> MTRLRegressor:
    assert M > DENSE_LIMIT
    X, y, tasks = _rows()
    return _regressor().fit(X, y, tasks=tasks)


def test_the_limit_notices_what_it_is_for() -> None:
    with pytest.raises(AssertionError, match="MiB were held"), at_most(LIMIT):
        np.ones((M, M), dtype=bool)


@pytest.mark.parametrize(
    ("relationship", "common"),
    [("learned", 0.0), ("learned", 1.0), ("independent", 0.0), ("independent", 1.0), ("shared", 0.0)],
)
@pytest.mark.parametrize("method", ["auto", "dual"])
def test_solve_makes_no_square_array(relationship: str, method: str, common: float) -> None:
    X, y, tasks = _rows()
    data = TaskData.from_long(X, y, tasks)
    how = Settings(tol=0.5, max_rounds=3, omega_steps=1, w_rounds=2, method=method)
    given = shared(M, 0.1) if relationship == "shared" else relationship
    with at_most(LIMIT), _quiet():
        outcome = solve(
            Problem.of(data, loss="squared", reg_lambda=0.1, relationship=given, common=common), Execution(settings=how)
        )
    assert outcome.W.shape == (M, D)


def test_shards_make_no_square_array() -> None:
    X, y, tasks = _rows()
    data, how = TaskData.from_long(X, y, tasks), Settings(tol=0.5, max_rounds=2)
    with at_most(LIMIT), _quiet():
        solve(
            Problem.of(data, loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=3, shards=2), settings=how)
        )


@pytest.mark.parametrize("relationship", ["learned", "independent"])
def test_fit_makes_no_square_array(relationship: str) -> None:
    X, y, tasks = _rows()
    with at_most(LIMIT):
        _regressor(relationship=relationship).fit(X, y, tasks=tasks)


@pytest.mark.parametrize("relationship", ["learned", "independent"])
def test_classifiers_make_no_square_array_also_with_tasks_of_one_class(relationship: str) -> None:
    X, y, tasks = _rows(classes=True)
    y[tasks == 7] = True
    model = MTRLClassifier(tol=0.3, relationship=relationship, on_single_class="constant", common=0.0)
    with at_most(LIMIT):
        model.fit(X, y, tasks=tasks)
        covariance = model.task_covariance_
    assert isinstance(covariance, TaskCovariance)
    assert covariance.trace() == pytest.approx(1.0)
    related = covariance.block([7, 8])
    assert related[0, 1] == 0.0
    assert model.predict(X[tasks == 7], tasks=tasks[tasks == 7]).all()


PATHS: dict[str, Callable[[MTRLRegressor, Path], object]] = {
    "predict": lambda model, _: model.predict(_rows()[0], tasks=_rows()[2]),
    "score": lambda model, _: model.score(_rows()[0], _rows()[1], tasks=_rows()[2]),
    "save and load": lambda model, path: (model.save(path / "model"), load(path / "model")),
    "covariance": lambda model, _: model.task_covariance_,
    "diagonal": lambda model, _: model.task_covariance_.diagonal(),
    "apply": lambda model, _: model.task_covariance_.apply(model.coef_),
    "block": lambda model, _: model.task_covariance_.block(np.arange(100)),
    "spectral rho": lambda model, _: model.task_covariance_.spectral_rho(),
    "plus common": lambda model, _: model.task_covariance_.plus_common(1.0),
    "report facts": lambda model, _: model_facts(model),
    "add a task": lambda model, _: copy.copy(model).add_task(*_rows()[:2], name=M),
}


@pytest.mark.parametrize("path", PATHS)
def test_what_is_done_with_a_model_makes_no_square_array(path: str, fitted: MTRLRegressor, tmp_path: Path) -> None:
    with at_most(LIMIT):
        PATHS[path](fitted, tmp_path)


def test_pairs_are_searched_a_block_at_a_time(fitted: MTRLRegressor) -> None:
    vectors = unit_vectors(fitted.task_covariance_)
    with at_most(8 * M * M / 2):
        strongest_pairs(vectors, 5)
        nearest_tasks(vectors)
        fitted.task_covariance_.paper_rho()


@pytest.mark.parametrize("access", ["task_correlation_", "dense"])
def test_a_dense_array_of_many_tasks_is_refused(access: str, fitted: MTRLRegressor) -> None:
    with at_most(LIMIT), pytest.raises(ValueError, match=r"6000 tasks.*block\(tasks\)"):
        fitted.task_correlation_ if access == "task_correlation_" else fitted.task_covariance_.dense()


FACTORS = {
    "solve": {"kind": "solve", "m": 4000, "rows": 50, "d": 100, "dtype": "float32", "loss": "squared"},
    "solve, long tasks": {"kind": "solve", "m": 200, "rows": 500, "d": 100, "dtype": "float64", "loss": "squared"},
    "sparse": {"kind": "solve", "m": 40, "rows": 5000, "d": 3000, "dtype": "float64", "loss": "logistic", "thin": True},
    "fit": {"kind": "fit", "m": 4000, "rows": 50, "d": 100, "dtype": "float32"},
}


@pytest.mark.subprocess
@pytest.mark.slow
@pytest.mark.parametrize("which", FACTORS)
def test_memory_stays_in_proportion_to_the_data(which: str) -> None:
    """fit holds the caller's rows and its own, in which they lie task after task."""
    figures, most = scale.measure(**FACTORS[which]), 3.0 if which == "fit" else scale.MOST
    assert figures["data"] > 70e6  # far above what any process needs
    assert figures["peak"] <= most * figures["data"]
    assert figures["gap"] <= scale_run.GAP


@pytest.mark.subprocess
def test_a_size_that_cannot_be_measured_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"bench scale failed at .*\"m\": -1"):
        scale.measure(**FACTORS["solve"] | {"m": -1})


def test_exponents_by_hand() -> None:
    assert scale.exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1.0)
    assert scale.exponent([1, 2, 4], [1, 4, 16]) == pytest.approx(2.0)
    assert scale.growth([1, 10, 100], [1, 10, 1000]) == "1.50, 2.00"


@pytest.mark.subprocess
@pytest.mark.slow
def test_quick_mode_runs_and_prints_its_tables(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bench", "scale", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    for title in ("Scaling with the number of tasks", "Growth exponents"):
        assert title in result.stdout
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert all(record["figures"]["gap"] <= scale_run.GAP for record in records)


@pytest.mark.subprocess
@pytest.mark.slow
def test_quick_memory(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bench", "memory", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [record["params"]["what"] for record in records] == list(memory.TARGETS)
    for record in records:
        figures = record["figures"]
        assert figures["gap"] <= scale_run.GAP
        assert figures["peak"] > figures["data"]
        assert f"| {figures['peak'] / figures['data']:.2f} |" in result.stdout


@pytest.mark.subprocess
def test_memory_is_that_of_this_process() -> None:
    code = "import numpy as np; from dmtrl_lab.bench.scale_run import memory; a = memory()[0]; x = np.ones(10**7);"
    code += "print(memory()[0] - a); del x; print(memory()[1] - a)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    now, most = map(int, done.stdout.split())
    assert 78e6 < now < 100e6
    assert 78e6 < most < 100e6


def test_made_data_has_the_signal_that_it_says() -> None:
    X, y, codes = scale_run.make(40, 2000, 20, "float64", "squared", mixed=True)
    W = np.stack([np.linalg.lstsq(X[codes == i], y[codes == i], rcond=None)[0] for i in range(40)])
    s = np.linalg.svd(W, compute_uv=False)
    assert s[scale_run.RANK] < 0.2 * s[scale_run.RANK - 1]
    residual = y - np.einsum("ij,ij->i", X, W[codes])
    assert residual.std() == pytest.approx(scale_run.NOISE, rel=0.05)
    thin, labels, _ = scale_run.make(5, 30, 600, "float32", "logistic", thin=True)
    assert thin.has_sorted_indices
    assert thin.shape == (150, 600)
    assert (np.diff(thin.indptr) == scale_run.ENTRIES).all()
    assert set(np.unique(labels)) == {-1.0, 1.0}


# the blocked ways against plain ones


@pytest.mark.parametrize("shape", [(1, 3), (7, 4), (50_000, 7)])
def test_blocked_products_are_the_plain_ones_whatever_the_threads(shape: tuple[int, int], monkeypatch) -> None:
    monkeypatch.setattr(rowwise, "_IN_CACHE", 1000)
    monkeypatch.setattr(rowwise, "_WORTH_THREADS", 1)
    rng = np.random.default_rng(0)
    A, B, centre = rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=shape[1])
    found = []
    for count in (1, 3):
        with rowwise.threads(count):
            found.append((rowwise.gram(A, B), rowwise.centred_gram(A, centre), rowwise.distance(A, B)))
    for alone, several in zip(*found, strict=True):
        np.testing.assert_array_equal(alone, several)
    np.testing.assert_allclose(found[0][0], A.T @ B, atol=1e-9)
    np.testing.assert_allclose(found[0][1], (A - centre).T @ (A - centre), atol=1e-9)
    assert found[0][2] == pytest.approx(np.linalg.norm(A - B))


def test_two_threads_give_the_bits_of_one(monkeypatch) -> None:
    monkeypatch.setattr(rowwise, "_WORTH_THREADS", 1)
    monkeypatch.setattr(rowwise, "_IN_CACHE", 64)
    X, y, codes = scale_run.make(60, 5, 8, "float64", "hinge")
    data, how = TaskData.from_long(X, y, codes), Settings(tol=1e-3)
    one, two = (
        solve(Problem.of(data, loss="hinge", reg_lambda=0.01), Execution(LocalOptions(n_jobs=n), settings=how))
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one.W, two.W)


@settings(deadline=None, max_examples=15)
@given(
    st.sampled_from([(30, 4), (4, 30), (6, 6), (6, 9), (9, 6), (1, 5)]),
    st.floats(0.3, 3.0),
    st.floats(0.05, 1.0),
    st.integers(0, 99),
)
def test_the_common_component_is_that_of_plain_turns(shape: tuple[int, int], t: float, tau: float, seed: int) -> None:
    """(24) repeated with full SVDs until nothing moves."""
    rng = np.random.default_rng(seed)
    V, w0 = rng.normal(size=shape) + 2 * rng.normal(size=shape[1]), np.zeros(shape[1])
    for _ in range(5000):
        before, R = w0, nuclear_prox(V - w0, t)[0]
        w0 = (V - R).sum(axis=0) / (len(V) + t / tau)
        if np.linalg.norm(w0 - before) <= 1e-9 * np.linalg.norm(w0) * t / (len(V) * tau):
            break
    found = Learned(tau).prox(V.copy(), t, np.zeros(shape[1]))
    best = 0.5 * ((R + w0 - V) ** 2).sum() + t * Learned(tau).penalty(R + w0, w0)
    reached = 0.5 * ((found.W - V) ** 2).sum() + t * found.penalty
    assert reached <= best * (1 + 1e-7)
    np.testing.assert_allclose(found.W, R + w0, atol=1e-3)


@pytest.mark.parametrize("shape", [(40, 3), (3, 40), (12, 12)])
@pytest.mark.parametrize("smallest", [1e-1, 1e-3, 1e-6, 1e-12, 0.0])
def test_the_nuclear_norm_also_of_thin_spectra(shape: tuple[int, int], smallest: float) -> None:
    rng = np.random.default_rng(0)
    k = min(shape)
    left, right = (np.linalg.qr(rng.normal(size=(n, k)))[0] for n in shape)
    s = np.linspace(1.0, smallest, k)
    assert nuclear_norm((left * s) @ right.T) == pytest.approx(s.sum(), rel=1e-12)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_pieces_are_views_also_of_sparse_rows(workers: int) -> None:
    X, y, codes = scale_run.make(20, 5, 600, "float64", "hinge", thin=True)
    pieces = TaskData.from_long(X, y, codes).sources(workers)
    assert np.array_equal(sparse.vstack([piece.X for piece in pieces]).toarray(), X.toarray())
    assert all(np.shares_memory(piece.X.data, X.data) and np.shares_memory(piece.y, y) for piece in pieces)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("intercept", [True, False, "penalised"])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_are_laid_as_a_plain_reading_says(make, intercept, mixed: bool, weighted: bool, monkeypatch) -> None:
    monkeypatch.setattr(rowwise, "_IN_CACHE", 50)  # several pieces
    rng = np.random.default_rng(0)
    dense = rng.normal(1.0, size=(60, 7)) * (rng.random((60, 7)) < 0.5)
    order = rng.permutation(60) if mixed else np.arange(60)
    weight = rng.random(60) if weighted else None
    names = np.arange(6)
    X = make(dense)
    labelled = LabelledRows(X, rng.normal(size=60), names, np.repeat(names, 10), weight, order)
    coordinates = Coordinates.for_rows(X, labelled.y, order, weight, intercept, centre_y=False)
    found = task_data(X, labelled, coordinates)
    centre = np.average(dense, axis=0, weights=weight) if intercept is True and make is np.asarray else np.zeros(7)
    np.testing.assert_allclose(coordinates.x_centre, centre, atol=1e-14)
    wanted = (dense - coordinates.x_centre)[order]
    if intercept == "penalised":
        wanted = np.hstack([wanted, np.ones((60, 1))])
    rows = found.X
    np.testing.assert_array_equal(rows.toarray() if sparse.issparse(rows) else rows, wanted)
    assert type(rows) is type(X)


def test_millions_of_single_precision_numbers_are_summed_in_double() -> None:
    X = np.full((400_000, 2), 1234.567, dtype=np.float32)
    found = Coordinates.for_rows(X, np.zeros(len(X)), np.arange(len(X)), None, True, False)
    assert found.x_centre == pytest.approx(np.float32(1234.567), rel=1e-7)
