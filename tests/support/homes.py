"""A real server on this machine that publishes data sets, and what is published there."""

import dataclasses
import hashlib
import http.server
import io
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dmtrl.datasets.registry import REGISTRY

Arrays = dict[str, np.ndarray]


class Home:
    """A server on 127.0.0.1 with files, a count of what was asked for, and a way to answer (by default properly)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.answer: Callable[[http.server.BaseHTTPRequestHandler, bytes], None] = send
        self.over = threading.Event()
        home = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                home.asked[name] += 1
                if name in home.files:
                    home.answer(self, home.files[name])
                else:
                    self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a client that hangs up in the middle is part of these tests

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data/"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def send(request: http.server.BaseHTTPRequestHandler, data: bytes, stated: int | None = None) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(data) if stated is None else stated))
    request.end_headers()
    request.wfile.write(data)


def school_files(arrays: Arrays) -> dict[str, bytes]:
    """The published layout: one column a pupil, numbers of rows from one, and where each task starts."""

    def mat(**variables: np.ndarray) -> bytes:
        savemat(file := io.BytesIO(), variables, do_compression=True)
        return file.getvalue()

    def starts(rows: np.ndarray) -> np.ndarray:
        return np.flatnonzero(np.diff(arrays["task"][rows], prepend=-1))[None, :] + 1

    y = arrays["y"].astype(np.uint8)[:, None]
    files = {"school_b.mat": mat(x=arrays["X"].T.astype(float), y=y, task_indexes=starts(np.arange(len(y))))}
    for k in range(1, 11):
        train, test = arrays[f"train_{k}"], arrays[f"test_{k}"]
        files[f"school_{k}_indexes.mat"] = mat(
            tr=train[None, :].astype(np.uint16) + np.uint16(1),
            tst=test[None, :].astype(np.uint16) + np.uint16(1),
            tr_indexes=starts(train),
            tst_indexes=starts(test),
        )
    return files


def digest(arrays: Arrays) -> str:
    """As the docstring of arrays_digest states it, written a second time."""
    stream = b""
    for name, array in sorted(arrays.items()):
        stream += f"{name} {array.dtype.str} {'x'.join(str(n) for n in array.shape)}\n".encode()
        stream += np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(stream).hexdigest()


def live_at(monkeypatch: pytest.MonkeyPatch, name: str, *homes: str, **changes: str) -> None:
    monkeypatch.setitem(REGISTRY, name, dataclasses.replace(REGISTRY[name], mirrors=homes, **changes))


def same(found: Path, arrays: Arrays) -> None:
    with np.load(found, allow_pickle=False) as archive:
        assert set(archive.files) == set(arrays)
        for name, array in arrays.items():
            assert archive[name].dtype == array.dtype
            assert np.array_equal(archive[name], array), name
