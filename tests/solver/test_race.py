"""A race leaves out only what is significantly worse, and chooses what the whole grid chooses."""

import numpy as np
import pytest
from scipy import stats

from dmtrl import Execution, MTRLRegressorCV, Problem, Settings, TaskData
from dmtrl.solver.grid import Criterion, Grid
from dmtrl.solver.race import FIRST_FOLDS, LEVEL, contenders
from dmtrl.solver.search import search


def test_the_test_is_a_paired_one_over_tasks() -> None:
    rng = np.random.default_rng(0)
    by_task = rng.gamma(2.0, size=12)
    total = by_task + np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.5])[:, None] + 0.1 * rng.normal(size=(6, 12))
    best = total.mean(axis=1).argmin()
    kept = contenders(total, np.ones_like(total), "tasks")
    for candidate in range(6):
        if candidate != best:
            found = stats.ttest_rel(total[candidate], total[best], alternative="greater")
            assert kept[candidate] == (found.pvalue >= LEVEL)
    assert kept[best]
    assert 1 < kept.sum() < 6


def test_rows_weigh_the_tasks() -> None:
    """The second is worse on the many rows of one task only, the third on all tasks."""
    weight = np.tile([1000.0, 1, 1, 1, 1, 1], (3, 1))
    mean = np.array([[1.0] * 6, [1.5, 1, 1, 1, 1, 1], [1.5, 1.4, 1.5, 1.6, 1.5, 1.5]])
    assert contenders(mean * weight, weight, "tasks").tolist() == [True, True, False]
    assert contenders(mean * weight, weight, "rows").tolist() == [True, True, True]


def test_all_candidates_remain_without_a_test() -> None:
    total = np.array([[1.0, 1.0], [50.0, 60.0]])
    assert contenders(total, np.ones((2, 2))).all()
    unseen = np.array([[1.0, 1.0, 1.0, 0.0], [50.0, 60.0, 70.0, 0.0]])
    weight = np.tile([1.0, 1.0, 1.0, 0.0], (2, 1))
    assert contenders(unseen, weight, "tasks").tolist() == [True, False]
    assert contenders(np.ones((4, 5)), np.ones((4, 5))).all(), "equal candidates are not worse"


def _rows(seed: int, classes: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    m, n, d = 12, 40, 6
    W = rng.normal(size=(1, d)) + 0.7 * rng.normal(size=(m, 2)) @ rng.normal(size=(2, d))
    tasks, X = np.repeat(np.arange(m), n), rng.normal(size=(m * n, d))
    z = (X * W[tasks]).sum(axis=1) + rng.normal(size=m * n)
    return X, np.where(z > 0, 1.0, -1.0) if classes else z, tasks


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_choice_is_that_of_the_whole_grid(loss: str, seed: int) -> None:
    data = TaskData.from_long(*_rows(seed, loss == "logistic"))
    # accurate fits: else two starts that end elsewhere within the tolerance could decide between nearly equal ones
    problem, accurate = Problem.of(data, loss=loss, reg_lambda=1.0), Execution(settings=Settings(tol=1e-6))
    grid, race = (
        search(problem, Grid(np.logspace(1, -3, 5), [0.0, 1.0], criterion=Criterion(race=race)), accurate).results
        for race in (False, True)
    )
    assert grid.complete.all()
    tried = race.rounds > 0
    assert tried[..., :FIRST_FOLDS].all()
    assert not tried.all(), "something is left out"
    assert race.loss[:, :, :FIRST_FOLDS].tobytes() == grid.loss[:, :, :FIRST_FOLDS].tobytes()
    assert race.best("loss") == grid.best("loss")
    left = race.complete
    assert left[race.index_of(race.best("loss"))]
    assert np.allclose(race.mean("loss")[left], grid.mean("loss")[left], rtol=1e-4)


def test_the_mean_of_what_was_left_out_is_over_the_folds_it_was_tried_on() -> None:
    X, y, tasks = _rows(0, False)
    path = MTRLRegressorCV(lambdas=[10.0, 0.01], commons=[0.0], owns=[0.0]).fit(X, y, tasks=tasks).cv_results_
    assert path.complete.tolist() == [[False, True]]
    by_hand = path.squared_error[0, 0, :FIRST_FOLDS].sum() / path.weight[0, 0, :FIRST_FOLDS].sum()
    assert path.mean("squared_error")[0, 0] == pytest.approx(by_hand, rel=1e-12)
    assert path.weight[0, 0, FIRST_FOLDS:].sum() == 0
