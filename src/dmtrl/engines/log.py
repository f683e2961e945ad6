"""The messages a worker has answered, as far as a replacement for it must be sent them again.

Answers are not kept. Messages stay in memory up to a limit, then in an unnamed temporary file that vanishes with the
process.
"""

import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dmtrl.protocol.codec import decode, encode, name_of
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import READ_ONLY, HoldOut, Prepare, Restore, Save, UseShared

IN_MEMORY = 256 << 20  # bytes, for all workers of an engine
_BATCH = 8 << 20  # bytes that are replayed at a time
_SAVE = name_of(Save)
_LENGTH = struct.Struct("<Q")


class ReplayLog:
    """`in_memory`: bytes beyond which the log moves to disk."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = max(in_memory, 1)  # 0 would mean no limit
        # the last ones; a restored worker holds out the same rows and uses the same shared part
        self._hold_out: Message | None = None
        self._use_shared: Message | None = None
        self._save: tuple[str, int] | None = None  # folder of the last save, and the file position after it
        self._file = self._spool()
        self.missing = ""  # why the beginning could not be kept; empty if it was

    def _spool(self) -> tempfile.SpooledTemporaryFile[bytes]:
        return tempfile.SpooledTemporaryFile(max_size=self._in_memory)

    def close(self) -> None:
        with suppress(OSError):  # the disk may be full
            self._file.close()

    def _begin(self, *messages: Message | None) -> None:
        self.close()
        self._save, self._file, self.missing = None, self._spool(), ""
        for message in messages:
            if message is not None:
                self._append(message)

    def _append(self, message: Message) -> None:
        if self.missing and self._save is None:  # a replacement cannot start from here
            return
        data = message.encode()
        self._file.seek(0, 2)
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)
        self._file.flush()  # a full disk must show now, not at the replay

    def before(self, message: Message) -> None:
        """Call before a message is posted, with nothing of the log being replayed.

        A save counts once all workers have written theirs, which the next save confirms by naming it as `last`. From
        then on a replacement starts from `last`. The log must begin there before that next save is posted: a worker
        that writes it may remove older ones, and be lost before its answer arrives.
        """
        if message.name == _SAVE:
            with self._given_up_without_room():
                self._confirm(decode(message))

    def _confirm(self, request: Save) -> None:
        last = request.last
        if last == request.to or self._save is None or self._save[0] != last:
            return
        start = self._save[1]
        with self._file as old:
            self._save, self._file, self.missing = None, self._spool(), ""
            self._append(encode(Restore(source=last)))
            old.seek(start)
            shutil.copyfileobj(old, self._file)
            self._file.flush()

    def _saved(self, request: Save) -> None:
        self._confirm(request)
        if request.last == request.to:
            self._begin(encode(Restore(source=request.to)))
        self._save = request.to, self._file.seek(0, 2)

    def add(self, message: Message, answer: Message) -> None:
        """Add a message that was answered, and drop what it makes irrelevant.

        If there is no room, the log is given up until the next run starts, and `missing` says why.
        """
        with self._given_up_without_room():
            self._add(message, answer)

    @contextmanager
    def _given_up_without_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._begin()
            self.missing = str(error) or repr(error)

    def _add(self, message: Message, answer: Message) -> None:
        request = decode(message)
        if isinstance(request, READ_ONLY):
            return
        if isinstance(request, HoldOut):
            self._hold_out = message
        if isinstance(request, UseShared):
            self._use_shared = message
        if isinstance(request, Save):
            if "error" not in answer.scalars:
                self._saved(request)
        elif isinstance(request, Restore):
            self._begin(message)
        elif isinstance(request, Prepare) and not request.keep:
            self._begin(self._hold_out, self._use_shared, message)
        else:
            self._append(message)

    def batches(self) -> Iterator[list[Message]]:
        """All messages in order, some at a time."""
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
