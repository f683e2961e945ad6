"""What the server of NVIDIA FLARE received, and what it held in memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from dmtrl.federation.flare.server.folder import StudyServer
from dmtrl.protocol.message import MAGIC, Message

HOOK = Path(__file__).resolve().parent / "server_recorder"


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

    def start(self, coordinator: StudyServer) -> None:
        """Start a server that keeps records."""
        path = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"PYTHONPATH": path, "DMTRL_RECORD": str(self.folder), "DMTRL_RECORD_SITES": str(self._sites)}
        with patch.dict(os.environ, variables):
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
