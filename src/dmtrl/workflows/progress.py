"""Progress reports of the workflows: the current stage and how much of it is done."""

from typing import Protocol


class Progress(Protocol):
    """Receives progress reports."""

    def stage(self, text: str) -> None:
        """A new stage begins."""

    def update(self, done: float, detail: str = "") -> None:
        """A share `done` of the current stage, from 0 to 1, is finished."""


class NoProgress:
    """Ignores progress reports."""

    def stage(self, text: str) -> None:
        pass

    def update(self, done: float, detail: str = "") -> None:
        pass
