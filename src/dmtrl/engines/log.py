"""What a worker was told, as far as a new one in its place has to hear it.

Room: engines. Answers are not kept. Messages lie in memory up to a limit, then in a file without a name that is gone
with the process.
"""

import shutil
import struct
import tempfile
from collections.abc import Iterator

from dmtrl.message import Message

_IN_MEMORY = 32 << 20  # bytes for each worker
_BATCH = 8 << 20  # bytes told at a time
_LENGTH = struct.Struct("<Q")
_READ_ONLY = ("describe", "look", "score")


class Log:
    def __init__(self) -> None:
        self._held: Message | None = None  # the last hold_out; what is restored has the same rows set aside
        self._save: tuple[str, int] | None = None  # the last save, and where in the file stands what came after it
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115

    def close(self) -> None:
        self._file.close()

    def _begin(self, *messages: Message | None) -> None:
        self._file.close()
        self._save = None
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        for message in messages:
            if message is not None:
                self._append(message)

    def _append(self, message: Message) -> None:
        data = message.encode()
        self._file.seek(0, 2)
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)

    def _saved(self, to: str, last: str) -> None:
        """A save counts when all workers have done theirs, of which the next one tells: it names the `last` that does.
        Until then a new worker begins from that one, and hears what came after it."""
        if last == to:
            self._begin(Message("restore", {"from": to}))
        elif self._save is not None and self._save[0] == last:
            before, start = self._file, self._save[1]
            self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
            self._append(Message("restore", {"from": last}))
            before.seek(start)
            shutil.copyfileobj(before, self._file)
            before.close()
        self._save = to, self._file.seek(0, 2)

    def add(self, message: Message, answer: Message) -> None:
        """A message that was answered. Whatever it makes irrelevant is forgotten."""
        name, scalars = message.name, message.scalars
        if name in _READ_ONLY:
            return
        if name == "hold_out":
            self._held = message
        if name == "save":
            if "error" not in answer.scalars:
                self._saved(str(scalars["to"]), str(scalars.get("last", scalars["to"])))
        elif name == "restore":
            self._begin(message)
        elif name == "prepare" and not scalars.get("keep"):
            self._begin(self._held, message)
        else:
            self._append(message)

    def batches(self) -> Iterator[list[Message]]:
        """All of it in order, some at a time."""
        self._file.seek(0)
        batch, size = [], 0
        while head := self._file.read(_LENGTH.size):
            data = self._file.read(_LENGTH.unpack(head)[0])
            batch.append(Message.decode(data))
            size += len(data)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch
