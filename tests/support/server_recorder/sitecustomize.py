"""Runs when a Python process starts whose PYTHONPATH names this folder: the server of NVIDIA FLARE and its jobs.

Everything that the process receives goes into a file of the folder DMTRL_RECORD, byte by byte as it comes out of TLS.
The job process also writes down its memory, in the middle of a study. See `support/server_records.py`.
"""

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.sfm.conn_manager import SfmFrameReceiver

FOLDER = Path(os.environ["DMTRL_RECORD"])
LOOKS = {"release": ("number", 3), "sum_up": ("counter", 31)}  # memory is written down before these
PIECE = 1 << 16
_lock = threading.Lock()


def _record_frames() -> None:
    receive = SfmFrameReceiver.process_frame

    def process_frame(self: Any, frame: Any) -> None:
        data = bytes(frame)
        with _lock, open(FOLDER / f"{os.getpid()}.frames", "ab") as file:
            file.write(len(data).to_bytes(8, "little") + data)
        receive(self, frame)

    SfmFrameReceiver.process_frame = process_frame


def _record_memory() -> None:
    from dmtrl.federation.flare.server.sites import Sites

    post = Sites.post

    def post_and_look(self: Any, worker: int, number: int, messages: Sequence[Any]) -> None:
        for message in messages:
            field, moment = LOOKS.get(message.name, ("", None))
            if worker == 0 and moment is not None and message.scalars[field] == moment:
                _look(FOLDER / str(message.scalars["study"]))
        post(self, worker, number, messages)

    Sites.post = post_and_look  # type: ignore[method-assign]


def _look(folder: Path) -> None:
    """Write down what can be written to in this process, without empty pieces. All sites have answered the question
    before, and none has got the next one: what they hold now belongs to the same moment."""
    if folder.exists():  # the request is repeated
        return
    folder.mkdir()
    with open("/proc/self/maps") as file:
        regions = [line.split()[:2] for line in file]
    with open("/proc/self/mem", "rb", buffering=0) as memory, open(folder / "memory", "wb") as out:
        for addresses, rights in regions:
            if rights.startswith("rw"):
                start, end = (int(address, 16) for address in addresses.split("-"))
                for place in range(start, end, PIECE):
                    with suppress(OSError):  # another thread has given the region back since
                        piece = os.pread(memory.fileno(), min(PIECE, end - place), place)
                        if piece.count(0) < len(piece):
                            out.write(piece)
    for state in Path(os.environ["DMTRL_RECORD_SITES"]).glob("*/masked/state.npz"):
        shutil.copyfile(state, folder / f"{state.parents[1].name}.npz")


_record_frames()
if sys.platform == "linux" and any("runner_process" in word for word in sys.orig_argv):
    _record_memory()
