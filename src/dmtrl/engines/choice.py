"""From what people write as `engine=` to something that starts workers.

Room: engines. A choice lays nothing out itself: it says for how many processors, and is given the sources.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dmtrl.data.blocks import Source
from dmtrl.engines.base import Engine
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import AnyLoss

Pieces = Callable[[int], Sequence[Source]]  # the data, laid out for so many workers


@runtime_checkable
class EngineChoice(Protocol):
    def session(self) -> AbstractContextManager[object]:
        """Keeps open what engines can share that are started one after the other."""
        ...

    def start(self, pieces: Pieces, losses: AnyLoss | Sequence[AnyLoss], names: Sequence[str] | None = None) -> Engine:
        """names: of the tasks, for error messages."""
        ...


@dataclass(frozen=True)
class Local:
    """Threads in this process."""

    threads: int = 1

    def session(self) -> AbstractContextManager[object]:
        return nullcontext()

    def start(self, pieces: Pieces, losses: AnyLoss | Sequence[AnyLoss], names: Sequence[str] | None = None) -> Engine:
        return LocalEngine(pieces(self.threads), losses, self.threads)


def choose_engine(engine: Any, threads: int = 1) -> EngineChoice:
    """`engine` is "local", "ray", RayOptions, or anything else that can start workers."""
    if isinstance(engine, str) and engine == "local":
        return Local(threads)
    if isinstance(engine, str) and engine == "ray":
        from dmtrl.engines.ray import RayOptions

        return RayOptions()
    if isinstance(engine, EngineChoice) and not isinstance(engine, type):
        return engine
    raise ValueError(f"engine must be 'local', 'ray' or RayOptions(...), got {engine!r}")
