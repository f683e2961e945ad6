"""Intercepts of coordinate ascent take steps that are long enough, and no longer: fewer passes, hardly more rounds."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse

from dmtrl import MTRLClassifier
from dmtrl.data.task_data import TaskData
from dmtrl.losses import get_loss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import Prepare
from dmtrl.worker.local_problem import LocalProblem
from dmtrl.worker.worker import Worker

Rows = tuple[object, np.ndarray, np.ndarray]
TASKS = 3


def labelled(X: object, shift: float, seed: int) -> Rows:
    """Classes that can be separated; `shift` moves the share of the positive one."""
    score = X @ np.random.default_rng(seed).normal(size=X.shape[1])  # type: ignore[operator, attr-defined]
    y = np.where(score / score.std() + shift > 0, 1, -1)
    return X, y, np.arange(len(y)) % TASKS


def words() -> Rows:
    rng = np.random.default_rng(0)
    X = sparse.random(
        TASKS * 600, 2000, 0.01, random_state=0, format="csr", data_rvs=lambda k: np.abs(rng.normal(size=k))
    )
    return labelled(X.multiply(1 / np.maximum(np.sqrt(X.multiply(X).sum(axis=1)), 1e-9)).tocsr(), 1.5, 1)


def wide() -> Rows:
    return labelled(np.random.default_rng(0).normal(size=(TASKS * 700, 600)), 1.5, 1)


def noisy() -> Rows:
    rng = np.random.default_rng(0)
    X, y, tasks = labelled(rng.normal(size=(TASKS * 1900, 100)), 0.0, 1)
    return X, np.where(rng.random(len(y)) < 0.3, -y, y), tasks


def fitted(rows: Rows, loss: str, lam: float) -> tuple[int, float]:
    X, y, tasks = rows
    model = MTRLClassifier(loss, reg_lambda=lam, max_rounds=600).fit(X, y, tasks=tasks)
    assert model.certificate_.relative_gap <= 1e-3
    return model.n_rounds_, sum(record["passes"] for record in model.history_)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
@pytest.mark.parametrize(("rows", "lam"), [(words, 1e-5), (words, 1e-3), (wide, 1e-3), (noisy, 1e-2)])
def test_rounds_and_passes(monkeypatch: pytest.MonkeyPatch, rows: Callable[[], Rows], lam: float, loss: str) -> None:
    given = rows()
    rounds, passes = fitted(given, loss, lam)
    monkeypatch.setattr(LocalProblem, "_enough_for_intercept", lambda self: np.full(self._blocks.n_units, np.inf))
    long_rounds, long_passes = fitted(given, loss, lam)
    assert rounds <= 2 * long_rounds
    if rows is noisy:
        assert passes < 0.8 * long_passes


def test_the_step_does_not_depend_on_the_other_tasks_of_a_worker() -> None:
    rng = np.random.default_rng(0)
    parts = [sparse.random(900, 400, share, random_state=i, format="csr") for i, share in enumerate((0.01, 0.05, 0.2))]
    X, starts = sparse.vstack(parts).tocsr(), np.arange(0, 2701, 900)
    data = TaskData(X, np.where(rng.random(2700) < 0.8, 1.0, -1.0), None, starts, np.arange(3))

    def steps(workers: int) -> np.ndarray:
        found = []
        for source in data.sources(workers):
            worker = Worker(source, get_loss("logistic"))
            k = source.load().n_units
            request = Prepare(
                first_step=1e4,
                intercept=True,
                intercept_ridge=np.full(k, 1e-6),
                total_weight=np.full(k, 900.0),
                steps=np.zeros(k, dtype=np.int64),
            )
            found.append(decode(worker.answer(encode(request))).intercept_step)
        return np.concatenate(found)

    together = steps(1)
    np.testing.assert_array_equal(together, steps(3))
    assert len(set(together)) == 3, "denser rows, shorter steps"
