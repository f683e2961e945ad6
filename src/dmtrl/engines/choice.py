"""From the `engine` argument to the options of an engine."""

from dataclasses import replace
from typing import Any

from dmtrl.engines.base import Engine
from dmtrl.engines.local import LocalOptions
from dmtrl.engines.options import EngineOptions


def choose_engine(engine: Any, n_jobs: int | None = None) -> EngineOptions | Engine:
    """`engine` is "local", "ray", LocalOptions, RayOptions, other EngineOptions, or a running Engine.

    `n_jobs` is the number of threads of LocalOptions that do not say it themselves.
    """
    if isinstance(engine, str) and engine == "local":
        return LocalOptions(n_jobs=n_jobs)
    if isinstance(engine, str) and engine == "ray":
        from dmtrl.engines.ray import RayOptions

        return RayOptions()
    if isinstance(engine, LocalOptions):
        return replace(engine, n_jobs=n_jobs) if engine.n_jobs is None and n_jobs is not None else engine
    if is_running(engine) or (isinstance(engine, EngineOptions) and not isinstance(engine, type)):
        return engine
    raise ValueError(f"engine must be 'local', 'ray', LocalOptions(...) or RayOptions(...), got {engine!r}")


def is_running(engine: Any) -> bool:
    """Whether it is a running engine, whose workers hold the tasks, and not the options of one."""
    return hasattr(engine, "exchange") and not isinstance(engine, type)
