"""What a worker was told, as far as a new one in its place has to hear it.

Room: engines. Answers are not kept. Messages lie in memory up to a limit, then in a file without a name that is gone
with the process.
"""

import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress

from dmtrl.protocol.message import Message

IN_MEMORY = 256 << 20  # bytes for all workers of an engine
_BATCH = 8 << 20  # bytes told at a time
_LENGTH = struct.Struct("<Q")
_READ_ONLY = ("describe", "look", "score")


class Log:
    """in_memory: bytes from which on it lies on disk."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = max(in_memory, 1)  # 0 would be without a limit
        self._held: Message | None = None  # the last hold_out; what is restored has the same rows set aside
        self._save: tuple[str, int] | None = None  # the last save, and where in the file stands what came after it
        self._file = self._spool()
        self.missing = ""  # why the beginning could not be kept, if it could not

    def _spool(self) -> tempfile.SpooledTemporaryFile[bytes]:
        return tempfile.SpooledTemporaryFile(max_size=self._in_memory)

    def close(self) -> None:
        with suppress(OSError):  # there may be no room for the last of it
            self._file.close()

    def _begin(self, *messages: Message | None) -> None:
        self.close()
        self._save, self._file, self.missing = None, self._spool(), ""
        for message in messages:
            if message is not None:
                self._append(message)

    def _append(self, message: Message) -> None:
        if self.missing and self._save is None:  # nobody can begin from here
            return
        data = message.encode()
        self._file.seek(0, 2)
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)
        self._file.flush()  # so that a full disk shows now, and not when it is told

    def _saved(self, to: str, last: str) -> None:
        """A save counts when all workers have done theirs, of which the next one tells: it names the `last` that does.
        Until then a new worker begins from that one, and hears what came after it."""
        if last == to:
            self._begin(Message("restore", {"from": to}))
        elif self._save is not None and self._save[0] == last:
            start = self._save[1]
            with self._file as before:
                self._file, self.missing = self._spool(), ""
                self._append(Message("restore", {"from": last}))
                before.seek(start)
                shutil.copyfileobj(before, self._file)
                self._file.flush()
        self._save = to, self._file.seek(0, 2)

    def add(self, message: Message, answer: Message) -> None:
        """A message that was answered. Whatever it makes irrelevant is forgotten. Where there is no room for it all is
        given up until something begins anew, and `missing` says why."""
        try:
            self._add(message, answer)
        except OSError as error:
            self._begin()
            self.missing = str(error) or repr(error)

    def _add(self, message: Message, answer: Message) -> None:
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
