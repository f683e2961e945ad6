"""What a user asks for: where to write checkpoints, and how often."""

import os
from dataclasses import dataclass

from dmtrl import storage
from dmtrl.numerics.checks import is_number, is_whole, require

PathLike = str | os.PathLike[str]
_DEFAULT_SECONDS = 60.0


@dataclass(frozen=True)
class Checkpoint:
    """Write checkpoints every so many rounds or seconds, whichever comes first; by default every minute.

    Parameters
    ----------
    path : str or path-like
        A folder or fsspec URL. Workers write there too: with several machines it must be one that all can reach.
    every_rounds : int, optional
    every_seconds : float, optional
    """

    path: PathLike
    every_rounds: int | None = None
    every_seconds: float | None = None

    def __post_init__(self) -> None:
        check_path("the path of a checkpoint", self.path)
        rounds, seconds = self.every_rounds, self.every_seconds
        require(rounds is None or (is_whole(rounds) and rounds > 0), "every_rounds", "a positive integer", rounds)
        require(seconds is None or (is_number(seconds) and seconds > 0), "every_seconds", "positive", seconds)

    @property
    def folder(self) -> str:
        return absolute(self.path)


def is_due(checkpoint: Checkpoint, rounds: int, seconds: float) -> bool:
    """Whether it is time to write, so many rounds and seconds after the last one."""
    every_rounds, every_seconds = checkpoint.every_rounds, checkpoint.every_seconds
    if every_rounds is None and every_seconds is None:
        return seconds >= _DEFAULT_SECONDS
    return rounds >= (every_rounds or float("inf")) or seconds >= (every_seconds or float("inf"))


def check_path(what: str, path: object) -> None:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    require(isinstance(text, str) and bool(text), what, "a folder or URL, as str or Path", path)


def absolute(path: PathLike) -> str:
    """As every worker can use it, whatever its working directory."""
    path = os.fspath(path)
    return path if storage.is_url(path) else os.path.abspath(path)
