"""Joint splitting from the inside: the points where the workers arrive, and when their loss is evaluated."""

from dataclasses import replace

import numpy as np
import pytest

from dmtrl import Settings, TaskData
from dmtrl.losses import BUILTIN, CLASSIFICATION, get_loss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import Improved, Prepare, Round
from dmtrl.relationship import FreeIntercept, Learned
from dmtrl.solver.layout import Layout
from dmtrl.solver.methods import splitting
from dmtrl.solver.methods.base import GapToClose, InitialPoint, RunContext, Totals
from dmtrl.worker.worker import Worker
from support.problems import mean_losses
from support.solving import solve_data


def _data(m: int = 5, n: int = 60, d: int = 30, classes: bool = True, seed: int = 0) -> TaskData:
    rng = np.random.default_rng(seed)
    X, W = rng.standard_normal((m * n, d)), rng.standard_normal(d) + 0.5 * rng.standard_normal((m, d))
    y = np.einsum("ij,ij->i", X, np.repeat(W, n, axis=0)) / np.sqrt(d) + 0.3 * rng.standard_normal(m * n)
    return TaskData(X, np.where(y > 0, 1.0, -1.0) if classes else y, None, np.arange(m + 1) * n, np.arange(m))


ROUGH = GapToClose(1.0, 0.05, np.inf)


def answer(b: np.ndarray, loss_w: float, bracket_w: float, loss_u: float = np.inf) -> Improved:
    units = len(b)
    whole = {name: np.zeros(units, int) for name in ("steps", "solver")}
    sums = {"loss_w": loss_w, "bracket_w": bracket_w, "loss_u": loss_u, "conjugate": 0.0}
    return Improved(b=b, **whole, **{name: np.full(units, value) for name, value in sums.items()})


@pytest.mark.parametrize("task", [[0, 1, 2], [0, 0, 1, 2, 2, 2]])
def test_the_server_knows_where_the_workers_arrive(task: list[int]) -> None:
    """U = C + s B with C by (17), for whole tasks and for shards, also after the step size changed."""
    rng, m, d, theta = np.random.default_rng(1), 3, 4, 1.6
    units, shards = len(task), np.bincount(task)[task][:, None]
    ones = np.ones(units)
    layout = Layout([np.arange(units)], np.array(task), np.zeros(units, int), ones, ones, m, d)
    b = np.zeros((units, d))
    method = splitting.Splitting(RunContext(Learned(), 0.3, layout, Settings()))
    state = method.init(InitialPoint(np.zeros((m, d)), np.zeros(d), b, np.zeros(units)))
    centre = np.zeros((units, d))
    for _ in range(6):
        step = method.requests(state, [0], ROUGH)[0].step[:, None]
        np.testing.assert_allclose(step, step[0] / shards[0] * shards)
        b = rng.standard_normal((units, d))
        u = centre + step * b
        method.step(state, {0: answer(b, loss_w=1.0 / units, bracket_w=1.0 / units)})
        request = method.requests(state, [0], ROUGH)[0]
        np.testing.assert_allclose(state.U, u, rtol=1e-9, atol=1e-9 * np.abs(u).max())
        centre = (1 - theta) * u + theta * request.w - request.step[:, None] * b


def test_the_best_weights_are_never_written_over() -> None:
    rng, m, d = np.random.default_rng(3), 4, 5
    ones = np.ones(m)
    layout = Layout([np.arange(m)], np.arange(m), np.zeros(m, int), ones, ones, m, d)
    relation = FreeIntercept(Learned(0.3), 0.1)
    method = splitting.Splitting(RunContext(relation, 0.3, layout, Settings()))
    state = method.init(InitialPoint(np.zeros((m, d)), np.zeros(d), np.zeros((m, d)), np.zeros(m)))
    best, then, shared = None, np.zeros(0), 0
    for number in range(12):
        method.requests(state, [0], replace(ROUGH, best=best))
        loss_u = 0.0 if number % 3 else np.inf  # sometimes U is reported, sometimes not
        b = rng.standard_normal((m, d))
        report = method.step(state, {0: answer(b, loss_w=5e6, bracket_w=5e6, loss_u=loss_u)})
        if best is not None:
            np.testing.assert_array_equal(best, then)
        if number % 4 != 3:  # else the best of the rounds before stays
            best = report.points[-1].W
            then, shared = best.copy(), shared + (best is state.U)
    assert shared > 2, "U was among the best"


@pytest.mark.parametrize("loss", sorted(BUILTIN))
@pytest.mark.parametrize("target", [1.0, 1e-3, 1e-9])
def test_the_loss_where_the_workers_arrive_is_known_from_below(loss: str, target: float) -> None:
    data = _data(classes=get_loss(loss).kind == CLASSIFICATION)
    data.y[:] = np.abs(data.y) if loss == "poisson" else data.y
    worker = Worker(data.sources(1)[0], get_loss(loss))
    m, d = data.m, data.X.shape[1]
    options = {"max_passes": 200, "local_solver": "sdca", "seed": 3}
    total = np.diff(data.starts).astype(float)
    worker.answer(encode(Prepare(total_weight=total, steps=np.zeros(m, np.int64), **options)))
    W, step = 0.1 * np.random.default_rng(2).standard_normal((m, d)), np.full(m, 0.5)
    found = decode(worker.answer(encode(Round(round=0, target=target, evaluate_u=True, w=W, step=step))))
    U, looked = W + step[:, None] * found.b, float(found.loss_u.sum())
    unseen = Totals(found.b, found.b, 0.0, 0.0, np.inf, float(found.conjugate.sum()), found.solver, found.steps)
    least = splitting._least_loss(unseen, U)
    assert least <= looked + 1e-9 * abs(looked)
    if target == 1e-9:  # the brackets, which are the difference, are what a local solver brings to zero
        assert least >= looked - 1e-6 * (1.0 + abs(looked))


@pytest.mark.parametrize(("loss", "lam"), [("squared", 1e-3), ("hinge", 1e-3), ("logistic", 1e-4)])
def test_looking_where_it_may_pay_ends_a_run_sooner(loss: str, lam: float, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _data(n=400, d=20, classes=loss != "squared")
    given = {"loss": loss, "reg_lambda": lam, "settings": Settings(tol=1e-3)}
    outcome = solve_data(data, **given)
    monkeypatch.setattr(splitting, "_least_loss", lambda totals, U: totals.loss_u)  # only what was evaluated anyway
    assert outcome.converged
    assert len(outcome.history) <= len(solve_data(data, **given).history)
    attained = mean_losses(data, outcome.W, loss) + 0.5 * lam * np.linalg.norm(outcome.W, "nuc") ** 2
    np.testing.assert_allclose(outcome.certificate.primal, attained, rtol=1e-9)


@pytest.mark.parametrize("shape", [(4, 30), (6, 7), (30, 4)])
@pytest.mark.parametrize("rank", [1, 3])
def test_sigma_of_weights_of_any_shape_and_rank_is_their_root(shape: tuple[int, int], rank: int) -> None:
    """(12) without epsilon: Sigma trace(.) squared is W W^T."""
    rng = np.random.default_rng(4)
    W = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    root = Learned().update(W).dense() * np.linalg.norm(W, "nuc")
    np.testing.assert_allclose(root @ root, W @ W.T, atol=1e-12 * np.linalg.norm(W) ** 2)
