"""Workers, shards and on_lost are options of the engine of an estimator."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dmtrl import LocalOptions, MTRLRegressor, MTRLRegressorCV, RayOptions, WorkerLostError
from dmtrl.engines import LocalEngine, choose_engine, recovery
from dmtrl.engines.base import Engine
from dmtrl.engines.recovery import RecoveringEngine
from support.checkpoints import table
from support.engine_options import Losses, Pieces, StartedBy
from support.fragile import Fragile


class ShrinkingCluster:
    """Starts three workers, of which the last never comes back once it is lost; later engines have no faults."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def begin(self, pieces: Pieces, losses: Losses, names: Sequence[str] | None) -> Engine:
        sources = pieces(3)
        self.started.append(len(sources))
        if len(self.started) > 1:
            return LocalEngine(sources, losses)
        carrier = Fragile(sources, "squared", 3, {20: "before"}, dead=range(3))
        return RecoveringEngine(carrier, recovery_timeout=0.2, names=names)


@pytest.mark.parametrize("kind", [MTRLRegressor, MTRLRegressorCV])
def test_a_fit_continues_on_the_workers_that_are_left(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_RETRY_DELAY", 0.0)
    X, y, tasks = table()
    known: dict[str, Any] = {} if kind is MTRLRegressor else {"lambdas": [0.1, 1.0], "cv": 3}
    whole = kind(**known).fit(X, y, tasks=tasks)
    cluster = ShrinkingCluster()
    with pytest.raises(WorkerLostError):
        kind(**known, engine=StartedBy(ShrinkingCluster().begin)).fit(X, y, tasks=tasks)
    model = kind(**known, engine=StartedBy(cluster.begin, on_lost="go_on")).fit(X, y, tasks=tasks)
    assert cluster.started == [3, 2], "a search and its fit use one engine"
    assert model.tasks_.tolist() == ["a", "b", "c"]
    assert model.reg_lambda_ == whole.reg_lambda_
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=0.05)


@pytest.mark.parametrize("kind", [MTRLRegressor, MTRLRegressorCV])
def test_workers_and_shards_do_not_change_the_optimum(kind: Any) -> None:
    X, y, tasks = table()
    known: dict[str, Any] = {"tol": 1e-5} | ({} if kind is MTRLRegressor else {"lambdas": [0.1, 1.0], "cv": 3})
    whole = kind(**known).fit(X, y, tasks=tasks)
    spread = kind(**known, engine=LocalOptions(workers=3)).fit(X, y, tasks=tasks)
    np.testing.assert_array_equal(spread.coef_, whole.coef_)
    cut = kind(**known, engine=LocalOptions(workers=4, shards=2)).fit(X, y, tasks=tasks)
    np.testing.assert_allclose(cut.coef_, whole.coef_, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_lost": "wait"}, "on_lost must be 'stop' or 'go_on', got 'wait'"),
        ({"workers": 0}, "workers must be None or a positive integer, got 0"),
        ({"workers": True}, "workers must be None or a positive integer, got True"),
        ({"shards": None}, "shards must be a positive integer, or one per task, got None"),
        ({"shards": 1.5}, "shards must be a positive integer, or one per task, got 1.5"),
        ({"shards": []}, "shards must be a positive integer, or one per task"),
        ({"max_staleness": -1}, "max_staleness must be an integer of at least 0, got -1"),
    ],
)
def test_wrong_options_of_an_engine_are_refused(options: dict[str, Any], message: str) -> None:
    for kind in (RayOptions, LocalOptions) if "on_lost" not in options else (RayOptions,):
        with pytest.raises(ValueError, match=message):
            kind(**options)


def test_a_wrong_engine_is_refused_before_rows_are_read() -> None:
    with pytest.raises(ValueError, match="engine must be 'local', 'ray', LocalOptions"):
        MTRLRegressor(engine="cloud").fit("no rows")
    with pytest.raises(ValueError, match="n_jobs must not be 0"):
        MTRLRegressor(n_jobs=0).fit("no rows")


def test_threads_of_the_estimator_are_those_of_options_without_their_own() -> None:
    assert choose_engine(LocalOptions(workers=2), 3) == LocalOptions(workers=2, n_jobs=3)
    assert choose_engine(LocalOptions(n_jobs=1), 3) == LocalOptions(n_jobs=1)
    assert choose_engine("local", 2) == LocalOptions(n_jobs=2)
