"""A task added later: certified against the problem it solves, and against a fit of everything."""

import cvxpy as cp
import numpy as np
import pytest

from dmtrl import Execution, Problem, Settings, Strengths, TaskData, get_loss, solve
from dmtrl.solver.new_task import extend
from support.oracles import optimum
from support.problems import mean_losses, random_problem, rows_of


@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_added_task_is_optimal_given_the_others_and_the_bound_holds(loss: str) -> None:
    everything = random_problem(loss, m=6, d=4, rows=30)
    first = everything.starts[5]
    old = TaskData(everything.X[:first], everything.y[:first], None, everything.starts[:6], everything.names[:5])
    rows = rows_of(everything, 5)
    new = TaskData.from_list([(everything.X[rows], everything.y[rows])])
    settings, lam = Settings(tol=1e-6, max_rounds=5000), 0.1
    model = solve(Problem.of(old, loss=loss, reg_lambda=lam), Execution(settings=settings))
    losses = mean_losses(old, model.W, loss)
    problem = Problem(6, get_loss(loss), Strengths(lam))
    added = extend(model.W, model.dual, losses, new, problem, Settings(tol=1e-5, max_rounds=5000))

    w = cp.Variable((1, 4))
    z = np.asarray(new.X) @ w[0]
    value = cp.sum_squares(z - new.y) / 2 if loss == "squared" else cp.sum(cp.pos(1 - cp.multiply(new.y, z)))
    size = cp.normNuc(cp.vstack([model.W.round(7), w]))  # rounded: with all its digits the solver complains
    best = optimum(cp.Minimize(value / len(new.y) + lam / 2 * cp.square(size)), accuracy=1e-6)
    assert added.outcome.certificate.primal == pytest.approx(best, rel=2e-4)

    refit = solve(Problem.of(everything, loss=loss, reg_lambda=lam), Execution(settings=settings))
    together = np.vstack([model.W, added.w])
    nuclear = np.linalg.svd(together, compute_uv=False).sum()
    assert added.certificate.primal == pytest.approx(mean_losses(everything, together, loss) + lam / 2 * nuclear**2)
    assert added.certificate.primal >= refit.certificate.dual
    assert added.certificate.dual <= refit.certificate.primal
    if loss == "squared":  # there alpha is the residual, so the newcomer's conjugate sum can be made from its weights
        residual = new.y - new.X @ added.w
        own = np.mean(residual**2 / 2 - residual * new.y)
        assert added.dual.conjugate - model.dual.conjugate == pytest.approx(own, rel=1e-2)
    assert added.certificate.relative_gap < 0.3  # with thirty rows a task the old tasks would hardly have moved


def test_invalid_new_tasks_are_refused() -> None:
    data = random_problem("squared", m=3, d=4)
    model = solve(Problem.of(data, loss="squared", reg_lambda=0.1))
    args = Problem(4, get_loss("squared"), Strengths(0.1)), Settings()
    with pytest.raises(ValueError, match="one task can be added at a time, got 3"):
        extend(model.W, model.dual, 0.0, data, *args)
    with pytest.raises(ValueError, match="the new task has 2 features, which does not fit the weights of the model"):
        extend(model.W, model.dual, 0.0, TaskData.from_list([(np.eye(2), np.ones(2))]), *args)
