"""`solve` with all arguments in one call, for tests that vary them one at a time."""

from dataclasses import replace
from typing import Any

from dmtrl import Execution, LocalOptions, Outcome, Problem, Settings, solve
from dmtrl.engines import choose_engine, is_running

OF_ENGINE = ("workers", "shards", "n_jobs", "on_lost", "max_staleness")
OF_EXECUTION = ("settings", "checkpoint", "resume", "callbacks", "watch", "verbose")


def solve_data(data: Any, engine: Any = None, **how: Any) -> Outcome:
    """`how`: arguments of `Problem.of`, of `Execution`, and of the options of the engine."""
    options = {name: how.pop(name) for name in OF_ENGINE if name in how}
    execution = {name: how.pop(name) for name in OF_EXECUTION if name in how}
    execution["settings"] = execution.get("settings") or Settings()
    chosen: Any = LocalOptions(**options) if engine is None else choose_engine(engine)
    if engine is not None and options:
        assert not is_running(chosen), "a running engine has its options already"
        chosen = replace(chosen, **options)
    return solve(Problem.of(data, **how), Execution(chosen, **execution))
