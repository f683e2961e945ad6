"""Engines: deliver messages between coordinator and workers, keep workers alive, know nothing of the algorithm."""

from dmtrl.engines.choice import choose_engine, is_running
from dmtrl.engines.local import LocalEngine, LocalOptions
from dmtrl.engines.options import EngineOptions, thread_count
from dmtrl.engines.ray import RayEngine, RayOptions

__all__ = [
    "EngineOptions",
    "LocalEngine",
    "LocalOptions",
    "RayEngine",
    "RayOptions",
    "choose_engine",
    "is_running",
    "thread_count",
]
