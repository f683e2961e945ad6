"""A data file that is not there yet: fetched from its public home, checked, converted, kept in the cache.

Room: datasets. The network is asked only when no folder holds the file. In the end the whole file stands in the cache,
or nothing. Addresses and digests are in `sources`, the formats in `convert`.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from dmtrl.datasets.convert import CONVERTERS
from dmtrl.datasets.files import cache_folder, find_file, places
from dmtrl.datasets.sources import SOURCES, Source
from dmtrl.progress import bar
from dmtrl.storage import whole_file

SILENCE_SECONDS = 30.0  # a home that says nothing for so long is given up
FILE_SECONDS = 600.0  # and so is a file that takes longer than this
_MOST_BYTES = 1 << 28  # no file of ours is near this, packed or not: what is larger is something else
_STEP = 1 << 16
_ONE_AT_A_TIME = threading.Lock()


class _HomeFailed(Exception):
    """Why one home was of no use; its message becomes part of a sentence."""


class _BrokeOff(_HomeFailed):
    """A connection that ended too early: now and then that happens, so it is worth a second try."""


def locate(name: str, folder: str | Path | None = None) -> Path:
    """The path of a data file, downloaded into the cache if no folder holds it.

    DMTRL_OFFLINE=1 forbids the network. Processes that download at the same time do not disturb each other.
    """
    try:
        return find_file(name, folder)
    except FileNotFoundError:
        if name not in SOURCES:
            raise
    with _ONE_AT_A_TIME:
        target = cache_folder() / name
        if not target.is_file():  # another thread may have brought it meanwhile
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
    source, failures = SOURCES[name], []
    if os.environ.get("DMTRL_OFFLINE", "0") not in ("", "0"):
        failures = ["the environment variable DMTRL_OFFLINE forbids it"]
    else:
        _make_folder(target.parent)  # a cache that cannot be written to is told before anything is fetched
        for home in source.homes:
            try:
                arrays = _arrays_from(home, name, source)
            except _HomeFailed as failure:
                failures.append(f"{urlsplit(home).netloc}: {failure}")
            else:
                _keep(arrays, target)
                return
    raise FileNotFoundError(
        f"{name} was not found in {' and '.join(map(str, places(folder)))}, and could not be downloaded "
        f"({'; '.join(failures)}); where there is a network, call dmtrl.datasets.{source.loader}() and copy {name} "
        f"from the folder dmtrl.datasets.cache_folder() there to {target.parent} here, or set the environment variable "
        "DMTRL_DATA to the folder that holds it"
    )


def _arrays_from(home: str, name: str, source: Source) -> dict[str, np.ndarray]:
    """All files of a data set from one home, checked and converted."""
    files = {}
    for number, (file, sha256) in enumerate(source.files.items(), start=1):
        try:
            data = _fetch_or_try_again(home + file, f"{name}: {file} ({number} of {len(source.files)})")
            files[file] = _unpack(data) if file.endswith(".gz") else data
        except _HomeFailed as failure:
            raise _HomeFailed(f"{file} {failure}") from failure
        if sha256 is not None and hashlib.sha256(files[file]).hexdigest() != sha256:
            raise _HomeFailed(f"{file} has the wrong checksum")
    try:
        arrays = CONVERTERS[name](files)
    except Exception as error:  # foreign bytes may make a reader of files fail in any way
        raise _HomeFailed(f"its files are not the published ones ({error})") from error
    if source.arrays_sha256 is not None and arrays_digest(arrays) != source.arrays_sha256:
        raise _HomeFailed("its files have the wrong checksum")
    return arrays


def _fetch_or_try_again(url: str, what: str) -> bytes:
    try:
        return _fetch(url, what)
    except _BrokeOff:
        return _fetch(url, what)


def _fetch(url: str, what: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "dmtrl"})
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_SECONDS) as answer:
            return _read(answer, what)
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            raise _HomeFailed(f"was refused (HTTP {error.code} {error.reason})") from error
    except urllib.error.URLError as error:
        raise _HomeFailed(f"could not be asked for ({error.reason})") from error
    except TimeoutError as error:
        raise _HomeFailed(f"stopped coming for {SILENCE_SECONDS:g} seconds") from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokeOff(f"broke off ({error})") from error


def _read(answer: http.client.HTTPResponse, what: str) -> bytes:
    """The whole answer; the standard library says nothing when a connection ends before the stated length."""
    length = answer.length or 0
    data, shown, deadline = bytearray(), 0, time.monotonic() + FILE_SECONDS
    with bar(1, what, max(1, -(-length // _STEP))) as advance:
        while block := answer.read1(_STEP):
            data += block
            if len(data) > _MOST_BYTES:
                raise _HomeFailed("is far too large")
            if time.monotonic() > deadline:
                raise _HomeFailed(f"took longer than {FILE_SECONDS:g} seconds")
            while shown < len(data) // _STEP:
                shown += 1
                advance()
    if len(data) < length:
        raise _BrokeOff(f"was cut short ({len(data)} of {length} bytes came)")
    return bytes(data)


def _unpack(data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            return packed.read(_MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise _HomeFailed(f"is damaged ({error})") from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_kept(folder, error) from error


def _keep(arrays: Mapping[str, Any], target: Path) -> None:
    try:
        with whole_file(target) as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        if not target.is_file():  # else another process brought it, and one that reads it may stop us from replacing it
            raise _not_kept(target.parent, error) from error


def _not_kept(folder: Path, error: OSError) -> OSError:
    reason = (
        f"{error.strerror}: downloaded data cannot be kept here; set DMTRL_CACHE to a folder that can be written to"
    )
    return OSError(error.errno, reason, str(folder))
