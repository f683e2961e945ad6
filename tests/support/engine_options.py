"""Options of engines that tests start themselves."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from dmtrl.data.blocks import Source
from dmtrl.engines.base import Engine
from dmtrl.engines.options import Shards, Sources
from dmtrl.losses import AnyLoss

Pieces = Callable[[int], Sequence[Source]]  # the sources of as many workers as the options say, else of so many
Losses = AnyLoss | Sequence[AnyLoss]
Begin = Callable[[Pieces, Losses, Sequence[str] | None], Engine]


@dataclass(frozen=True)
class StartedBy:
    """Options whose engines are started by a function of a test."""

    begin: Begin
    workers: int | None = None
    shards: Shards = 1
    on_lost: str = "stop"

    def session(self) -> AbstractContextManager[object]:
        return nullcontext()

    def start(self, sources: Sources, losses: Losses, names: Sequence[str] | None = None) -> Engine:
        return self.begin(lambda workers: sources(self.workers or workers, self.shards), losses, names)
