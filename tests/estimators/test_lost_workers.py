"""Estimators have the options of `solve`: workers, shards and on_lost."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from dmtrl import MTRLRegressor, MTRLRegressorCV, WorkerLostError
from dmtrl.engines import LocalEngine, recovery
from dmtrl.engines.base import Engine
from dmtrl.engines.choice import Pieces
from dmtrl.engines.recovery import RecoveringEngine
from dmtrl.losses import AnyLoss
from support.checkpoints import table
from support.fragile import Fragile


class ShrinkingCluster:
    """Starts three workers, of which the last never comes back once it is lost; later engines have no faults."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def session(self) -> AbstractContextManager[object]:
        return nullcontext()

    def start(self, pieces: Pieces, losses: AnyLoss | Sequence[AnyLoss], names: Sequence[str] | None = None) -> Engine:
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
        kind(**known, engine=ShrinkingCluster()).fit(X, y, tasks=tasks)
    model = kind(**known, engine=cluster, on_lost="go_on").fit(X, y, tasks=tasks)
    assert cluster.started == [3, 2] if kind is MTRLRegressor else [3, 2, 2]
    assert model.tasks_.tolist() == ["a", "b", "c"]
    assert model.reg_lambda_ == whole.reg_lambda_
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=0.05)


@pytest.mark.parametrize("kind", [MTRLRegressor, MTRLRegressorCV])
def test_workers_and_shards_do_not_change_the_optimum(kind: Any) -> None:
    X, y, tasks = table()
    known: dict[str, Any] = {"tol": 1e-5} | ({} if kind is MTRLRegressor else {"lambdas": [0.1, 1.0], "cv": 3})
    whole = kind(**known).fit(X, y, tasks=tasks)
    spread = kind(**known, workers=3).fit(X, y, tasks=tasks)
    np.testing.assert_array_equal(spread.coef_, whole.coef_)
    cut = kind(**known, workers=4, shards=2).fit(X, y, tasks=tasks)
    np.testing.assert_allclose(cut.coef_, whole.coef_, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_lost": "wait"}, "on_lost must be 'stop' or 'go_on', got 'wait'"),
        ({"workers": 0}, "workers must be a positive integer, got 0"),
        ({"workers": True}, "workers must be a positive integer, got True"),
        ({"shards": None}, "shards must be a positive integer, got None"),
        ({"shards": 1.5}, "shards must be a positive integer, got 1.5"),
    ],
)
def test_wrong_options_are_refused_before_rows_are_read(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MTRLRegressor(**options).fit("no rows")
