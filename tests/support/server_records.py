"""What the server of NVIDIA FLARE received and held in memory, and a search for numbers in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dmtrl.federation.flare.coordinator import Coordinator
from dmtrl.protocol.message import MAGIC, Message

HOOK = Path(__file__).resolve().parent / "server_recorder"
_FINE = 2.0**60  # masked sums: a number is an integer multiple of 2^-10 and one of 2^-60


class ServerRecords:
    """The records of a server.

    Parameters
    ----------
    folder : Path
        Where they are kept.
    sites : Path
        The folder that holds those of the sites.
    """

    def __init__(self, folder: Path, sites: Path):
        self.folder, self._sites = folder, sites
        folder.mkdir()

    def start(self, coordinator: Coordinator) -> None:
        """Start a server that keeps records."""
        path = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
        with _environment(PYTHONPATH=path, DMTRL_RECORD=str(self.folder), DMTRL_RECORD_SITES=str(self._sites)):
            coordinator.start()

    def frames(self) -> list[bytes]:
        """All that any process of the server received so far."""
        found = []
        for path in self.folder.glob("*.frames"):
            data, at = path.read_bytes(), 0
            while at < len(data):
                size = int.from_bytes(data[at : at + 8], "little")
                found.append(data[at + 8 : at + 8 + size])
                at += 8 + size
        return found

    def messages(self) -> Iterator[Message]:
        """The messages of dmtrl in the frames."""
        for frame in self.frames():
            at = frame.find(MAGIC)
            while at >= 0:
                yield Message.decode(frame[at:])
                at = frame.find(MAGIC, at + 1)

    def memory(self, study: str) -> bytes:
        """The memory of the job process in the middle of a study."""
        return (self.folder / study / "memory").read_bytes()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def found_in(data: bytes, numbers: np.ndarray) -> np.ndarray:
    """Which of the numbers occur in the bytes, at any place: as a float, or as the integer that masks are added to.

    A number with few digits can occur by chance, and is not looked for.
    """
    numbers = np.unique(np.ravel(numbers).astype(float))
    fine = np.round((numbers - np.round(numbers * 2.0**10) * 2.0**-10) * _FINE).astype(np.int64)
    words = np.concatenate([numbers.view(np.uint64), fine.view(np.uint64)])
    values = np.concatenate([numbers, numbers])
    long = np.concatenate([numbers.view(np.uint64) & np.uint64(0xFFFFFFFF) != 0, np.abs(fine) > 2**40])
    assert long[: len(numbers)].any(), "there is something to look for"
    words, values = words[long], values[long]
    ends = np.zeros(1 << 16, dtype=bool)
    ends[words & np.uint64(0xFFFF)] = True
    found = np.zeros(len(words), dtype=bool)
    for offset in range(min(8, len(data) - 7)):
        there = np.frombuffer(data, "<u8", (len(data) - offset) // 8, offset)
        found |= np.isin(words, there[ends[there & np.uint64(0xFFFF)]])
    return np.unique(values[found])
