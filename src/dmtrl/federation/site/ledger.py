"""The ledger of a site: one line for every message that leaves it, in a file that only grows.

Every line holds the hash of the line before it, so a line that is changed, removed or moved breaks the chain. A second
file holds the number of lines and the last hash, so a ledger that is cut short is noticed too. Whoever can write both
files can forge both; copy the last hash elsewhere to exclude that.

Processes that write to one ledger take turns with a lock on its file, where the operating system has `fcntl`.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, BinaryIO

from dmtrl.protocol.message import Message

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FIRST = "0" * 64
_HEAD = re.compile(rb"([0-9]{12}) ([0-9a-f]{64})\n")


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    number: int  # counted from 1
    time: str  # UTC, ISO 8601
    study: str  # the hash of the study
    name: str  # of the message, or "refused"
    shapes: dict[str, list[int]]  # of each array
    numbers: int  # how many numbers the message holds
    bytes: int  # its length
    digest: str  # SHA-256 of its bytes
    repeated: bool  # whether the same bytes left the site before, so that nothing new left it
    text: str  # the sentence of a refusal
    previous: str  # the hash of the line before
    hash: str  # of this line


class Ledger:
    """The ledger in one file. ValueError if the file was changed by something else: nothing may leave then."""

    def __init__(self, path: Path):
        self.path = path
        self._size, self._count, self._last, self._before = 0, 0, _FIRST, _FIRST
        self._digests: set[str] = set()
        self._times: Counter[tuple[str, str]] = Counter()
        self._refusals: Counter[str] = Counter()
        self._file: FileIO | None = None  # open while this object holds the lock
        self._refresh()

    def times(self, study: str, name: str) -> int:
        """How often a message of this name has left for a study, without repetitions."""
        self._refresh()
        return self._times[study, name]

    def refusals(self, study: str) -> int:
        """How many lines about refusals a study has."""
        self._refresh()
        return self._refusals[study]

    def has_left(self, message: Message) -> bool:
        """Whether the same bytes have left before, so that nothing new leaves with them."""
        self._refresh()
        return hashlib.sha256(message.encode()).hexdigest() in self._digests

    def record(self, study: str, message: Message) -> None:
        """Write a line before the message leaves."""
        shapes = {name: list(array.shape) for name, array in message.arrays.items()}
        self._append(study, message.name, message.encode(), shapes, numbers_in(message))

    def record_refusal(self, study: str, reason: str) -> None:
        """Write a line about a sentence that leaves instead of an answer."""
        self._append(study, "refused", reason.encode(), {}, 0, reason)

    def _append(
        self, study: str, name: str, data: bytes, shapes: dict[str, list[int]], numbers: int, text: str = ""
    ) -> None:
        digest = hashlib.sha256(data).hexdigest()
        with self.locked() as file:
            content: dict[str, Any] = {
                "number": self._count + 1,
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "study": study,
                "name": name,
                "shapes": shapes,
                "numbers": numbers,
                "bytes": len(data),
                "digest": digest,
                "repeated": digest in self._digests,
                "text": text,
                "previous": self._last,
            }
            content["hash"] = _hash(content)
            line = _line(content)
            _write(file, line)
            self._take(Entry(**content), len(line))
            self._write_head()

    @contextmanager
    def locked(self) -> Iterator[FileIO]:
        """Hold the lock of the ledger, with all lines read. Other processes wait. It may be nested."""
        if self._file is not None:
            yield self._file
            return
        with open(self.path, "ab+", buffering=0) as file:
            _lock(file, exclusive=True)
            self._file = file
            try:
                self._catch_up(file)
                yield file
            finally:
                self._file = None

    def _refresh(self) -> None:
        if self.path.exists() or _head_of(self.path).exists():
            with self.locked():
                pass

    def _catch_up(self, file: FileIO) -> None:
        """Read lines that another process has written, and remove a line that a crash cut short: nothing left then."""
        size = os.fstat(file.fileno()).st_size
        if size < self._size:
            raise ValueError(f"{self.path} became shorter while it was in use: lines at its end were removed")
        if size > self._size:
            file.seek(self._size)
            for entry, length in _follow(self.path, BytesIO(file.read()), self._count, self._last):
                self._take(entry, length)
            if size > self._size:
                file.truncate(self._size)
        if not _check_head(self.path, self._count, self._last, self._before):
            self._write_head()

    def _take(self, entry: Entry, size: int) -> None:
        self._size += size
        self._count, self._before, self._last = entry.number, entry.previous, entry.hash
        if not entry.repeated:
            self._times[entry.study, entry.name] += 1
        self._refusals[entry.study] += entry.name == "refused"
        self._digests.add(entry.digest)

    def _write_head(self) -> None:
        head = _head_of(self.path)
        with open(head, "rb+" if head.exists() else "wb", buffering=0) as file:  # a fixed length: one write
            _write(file, f"{self._count:012d} {self._last}\n".encode())


def numbers_in(message: Message) -> int:
    """How many numbers a message holds."""
    scalars = sum(type(value) in (int, float) for value in message.scalars.values())
    return scalars + sum(array.size for array in message.arrays.values())


def entries(path: Path) -> Iterator[Entry]:
    """The lines of a ledger, without a check of the chain. ValueError at a line that is not one of a ledger."""
    if path.exists():
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield _entry(path, number, line)


def verify(path: Path) -> int:
    """Check the chain of a ledger and its head. Returns the number of lines; ValueError at the first that is wrong.

    A line that a crash cut short is no line: the message did not leave, and the next line replaces it.
    """
    number, last, before = 0, _FIRST, _FIRST
    if path.exists():
        with open(path, "rb") as file:
            _lock(file, exclusive=False)
            for entry, _ in _follow(path, file, 0, _FIRST):
                number, last, before = entry.number, entry.hash, entry.previous
            _check_head(path, number, last, before)
    else:
        _check_head(path, number, last, before)
    return number


def _follow(path: Path, file: BinaryIO, number: int, previous: str) -> Iterator[tuple[Entry, int]]:
    """The complete lines after line `number`, whose hash is `previous`, with their lengths. Each is checked."""
    for number, line in enumerate(file, number + 1):  # noqa: B020
        if not line.endswith(b"\n"):
            return
        entry = _entry(path, number, line)
        if entry.number != number or entry.previous != previous:
            raise ValueError(f"{path}, line {number} does not follow the line before it: a line was removed or moved")
        content = asdict(entry)
        if content.pop("hash") != _hash(content) or _line(asdict(entry)) != line:
            raise ValueError(f"{path}, line {number} was changed after it was written")
        yield entry, len(line)
        previous = entry.hash


def _entry(path: Path, number: int, line: bytes) -> Entry:
    try:
        content = json.loads(line)
        if isinstance(content, dict) and _has_types(content):
            return Entry(**content)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ValueError(f"{path}, line {number} is not a line of a ledger: the file was changed")


def _has_types(content: dict[str, Any]) -> bool:
    shapes = content["shapes"]
    plain = all(type(content[field.name]) is field.type for field in fields(Entry) if field.name != "shapes")
    return (
        plain
        and isinstance(shapes, dict)
        and all(isinstance(shape, list) for shape in shapes.values())
        and all(type(n) is int for shape in shapes.values() for n in shape)
    )


def _check_head(path: Path, count: int, last: str, before: str) -> bool:
    """Whether the head is that of the last line. False: of the line before, as a crash between two writes leaves it."""
    head = _head_of(path)
    if not head.exists():
        if count:
            raise ValueError(f"{head} is missing: it holds the number of lines and the last hash of the ledger")
        return False
    found = _HEAD.fullmatch(head.read_bytes())
    if found is None:
        raise ValueError(f"{head} does not hold a number of lines and a hash: the file was changed")
    expected, known = int(found[1]), found[2].decode()
    if count < expected:
        raise ValueError(f"{path} has {count} lines instead of {expected}: lines at its end were removed")
    if count > expected + 1:
        raise ValueError(f"{path} has {count} lines instead of {expected}: lines were added, or {head} was changed")
    if known != (last if count == expected else before):
        where = f"line {expected} of {path}" if expected else f"the beginning of {path}"
        raise ValueError(f"{where} does not have the hash that {head} holds: one of the two files was rewritten")
    return count == expected


def _lock(file: BinaryIO | FileIO, exclusive: bool) -> None:
    """Wait for the lock of an open file, which closing it releases."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)


def _write(file: FileIO, data: bytes) -> None:
    """Write everything, down to the disk."""
    written = file.write(data)
    if written != len(data):
        raise OSError(f"only {written} of {len(data)} bytes were written to {file.name}; is the disk full?")
    os.fsync(file.fileno())


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _head_of(path: Path) -> Path:
    return path.with_suffix(".head")


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
