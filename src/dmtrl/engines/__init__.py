"""Engines: deliver messages between coordinator and workers, keep workers alive, know nothing of the algorithm."""

from dmtrl.engines.choice import EngineChoice, choose_engine
from dmtrl.engines.local import LocalEngine
from dmtrl.engines.ray import RayEngine, RayOptions

__all__ = ["EngineChoice", "LocalEngine", "RayEngine", "RayOptions", "choose_engine"]
