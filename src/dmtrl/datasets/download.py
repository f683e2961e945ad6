"""Download a data set, check it, convert it and keep it in the cache.

The network is used only if no folder has the archive. The cache gets the whole archive or nothing. `registry` has the
URLs and checksums, `convert` the file formats.
"""

import gzip
import hashlib
import http.client
import io
import os
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from dmtrl.datasets.convert import CONVERTERS
from dmtrl.datasets.files import cache_folder, find_file, search_folders
from dmtrl.datasets.registry import REGISTRY, RemoteDataset
from dmtrl.progress import bar
from dmtrl.storage import whole_file

SILENCE_SECONDS = 30.0  # timeout of a mirror that sends nothing
FILE_SECONDS = 600.0  # timeout of one file
_MAX_BYTES = 1 << 28  # much more than any of the files, compressed or not
_STEP = 1 << 16
_LOCK = threading.Lock()


class _MirrorFailed(Exception):
    """Why a mirror cannot be used; the message becomes part of a sentence."""


class _ConnectionLost(_MirrorFailed):
    """A connection that ended early, which is worth one retry."""


def locate(name: str, folder: str | Path | None = None) -> Path:
    """The path of a data file, downloaded into the cache if no folder has it.

    DMTRL_OFFLINE=1 forbids downloads. Processes may download at the same time.
    """
    try:
        return find_file(name, folder)
    except FileNotFoundError:
        if name not in REGISTRY:
            raise
    with _LOCK:
        target = cache_folder() / name
        if not target.is_file():  # another thread may have downloaded it
            _download(name, target, folder)
        return target


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the arrays by name: a line "name dtype shape", such as "y <f4 15362", then the values in C order,
    little-endian.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), order="C")
        shape = "x".join(map(str, array.shape))
        digest.update(f"{name} {array.dtype.str} {shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _download(name: str, target: Path, folder: str | Path | None) -> None:
    dataset, failures = REGISTRY[name], []
    if os.environ.get("DMTRL_OFFLINE", "0") not in ("", "0"):
        failures = ["the environment variable DMTRL_OFFLINE forbids it"]
    else:
        with _cache_errors(target.parent):  # fails before the download if the cache is not writable
            target.parent.mkdir(parents=True, exist_ok=True)
        for mirror in dataset.mirrors:
            try:
                arrays = _arrays_from(mirror, name, dataset)
            except _MirrorFailed as failure:
                failures.append(f"{urlsplit(mirror).netloc}: {failure}")
            else:
                _save(arrays, target)
                return
    raise FileNotFoundError(
        f"{name} was not found in {' or '.join(map(str, search_folders(folder)))} and could not be downloaded "
        f"({'; '.join(failures)}); call dmtrl.datasets.{dataset.loader}() on a machine with internet access and copy "
        f"{name} from dmtrl.datasets.cache_folder() to {target.parent}, or set the environment variable DMTRL_DATA to "
        "the folder of the file"
    )


def _arrays_from(mirror: str, name: str, dataset: RemoteDataset) -> dict[str, np.ndarray]:
    """All files of a data set from one mirror, checked and converted."""
    files = {}
    for number, (file, sha256) in enumerate(dataset.files.items(), start=1):
        try:
            data = _fetch_with_retry(mirror + file, f"{name}: {file} ({number} of {len(dataset.files)})")
            files[file] = _decompress(data) if file.endswith(".gz") else data
        except _MirrorFailed as failure:
            raise _MirrorFailed(f"{file} {failure}") from failure
        if sha256 is not None and hashlib.sha256(files[file]).hexdigest() != sha256:
            raise _MirrorFailed(f"{file} has the wrong checksum")
    try:
        arrays = CONVERTERS[name](files)
    except Exception as error:  # a parser can fail in any way on unexpected bytes
        raise _MirrorFailed(f"its files are not the published ones ({error})") from error
    if dataset.arrays_sha256 is not None and arrays_digest(arrays) != dataset.arrays_sha256:
        raise _MirrorFailed("its files have the wrong checksum")
    return arrays


def _fetch_with_retry(url: str, what: str) -> bytes:
    try:
        return _fetch(url, what)
    except _ConnectionLost:
        return _fetch(url, what)


def _fetch(url: str, what: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "dmtrl"})
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_SECONDS) as response:
            return _read(response, what)
    except urllib.error.HTTPError as error:
        with error:  # closes the connection
            raise _MirrorFailed(f"was refused (HTTP {error.code} {error.reason})") from error
    except urllib.error.URLError as error:
        raise _MirrorFailed(f"could not be requested ({error.reason})") from error
    except TimeoutError as error:
        raise _MirrorFailed(f"timed out: no data for {SILENCE_SECONDS:g} seconds") from error
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionLost(f"lost the connection ({error})") from error


def _read(response: http.client.HTTPResponse, what: str) -> bytes:
    """The whole response. The standard library does not report a connection that ends before the stated length."""
    length = response.length or 0
    data, shown, deadline = bytearray(), 0, time.monotonic() + FILE_SECONDS
    with bar(1, what, max(1, -(-length // _STEP))) as advance:
        while block := response.read1(_STEP):
            data += block
            if len(data) > _MAX_BYTES:
                raise _MirrorFailed("is too large")
            if time.monotonic() > deadline:
                raise _MirrorFailed(f"timed out: it took longer than {FILE_SECONDS:g} seconds")
            while shown < len(data) // _STEP:
                shown += 1
                advance()
    if len(data) < length:
        raise _ConnectionLost(f"is truncated ({len(data)} of {length} bytes received)")
    return bytes(data)


def _decompress(data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as compressed:
            return compressed.read(_MAX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise _MirrorFailed(f"is damaged ({error})") from error


def _save(arrays: Mapping[str, Any], target: Path) -> None:
    with _cache_errors(target.parent):
        try:
            with whole_file(target) as file:
                np.savez_compressed(file, **arrays)
        except OSError:
            if not target.is_file():  # otherwise another process has saved it, and a reader may prevent its replacement
                raise


@contextmanager
def _cache_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror}: cannot save downloaded data here; set DMTRL_CACHE to a writable folder"
        raise OSError(error.errno, reason, str(folder)) from error
