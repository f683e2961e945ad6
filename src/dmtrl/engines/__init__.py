"""Engines: deliver messages between coordinator and workers, keep workers alive, know nothing of the algorithm."""

from dmtrl.engines.local import LocalEngine

__all__ = ["LocalEngine"]
