"""Atomic writes to local files, and checkpoint files on a disk or behind an fsspec URL.

A local file is written under a temporary name, synced and renamed. A checkpoint file is a numpy archive with a JSON
header and no pickle. Failures are OSErrors, whichever package they come from.
"""

import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HEADER = "header"
_TEMPORARY = ".dmtrl-"
_JUST_OPENED, _ABANDONED = 60, 7 * 86400  # seconds: before the file is locked; where locks are not visible
_DISK_ERRORS = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}


def is_url(path: str) -> bool:
    """Whether a path is for fsspec."""
    return "://" in path or "::" in path


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def split(path: str) -> tuple[str, str]:
    """The folder of a path, and the name in it."""
    if not is_url(path):
        return os.path.split(path)
    folder, _, name = path.rpartition("/")
    return folder, name


@contextmanager
def _remote(url: str, action: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the path in it. An error of the store becomes an OSError that names the action."""
    try:
        import fsspec
    except ImportError as error:
        raise OSError(f'{url} is a URL, which needs fsspec: pip install "dmtrl[ray]"') from error
    try:
        file_system, root = fsspec.core.url_to_fs(url)
        file_system.invalidate_cache()
    except Exception as error:  # an unknown protocol, a missing package, or an error of the store
        raise OSError(f"cannot open {url}: {error}") from error
    try:
        yield file_system, root
    except (FileNotFoundError, NotADirectoryError):
        raise
    except Exception as error:
        raise OSError(f"cannot {action} {url}: {error}") from error


def digest(*arrays: np.ndarray, words: str = "") -> str:
    """SHA-256 of a text and of arrays with their dtypes and shapes."""
    sha256 = hashlib.sha256(words.encode())
    for array in arrays:
        sha256.update(f"{array.dtype.str}{array.shape}".encode())
        sha256.update(np.ascontiguousarray(array).data)
    return sha256.hexdigest()


def check_folder(folder: str) -> None:
    """Raise OSError if a folder cannot be used or created. Creates nothing."""
    if is_url(folder):
        with _remote(folder, "open"):
            return
    existing = Path(folder)
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise NotADirectoryError(f"{existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(f"no permission to write in the folder {existing}")


def make_folder(folder: str) -> None:
    if not is_url(folder):
        os.makedirs(folder, exist_ok=True)
        return
    with _remote(folder, "create the folder") as (file_system, root):
        file_system.makedirs(root, exist_ok=True)


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `target` on success; after an error `target` is unchanged.

    An error of the disk, such as a full one, names `target`.
    """
    _sweep(target.parent)
    temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb+") as file:
            _lock(file)
            yield file
            if not file.closed:
                file.flush()
        with open(temporary, "rb+") as written:  # a compressed stream may have closed the file below it
            os.fsync(written.fileno())
        if target.exists():
            with suppress(OSError):  # some file systems have no modes
                os.chmod(temporary, target.stat().st_mode)
        os.replace(temporary, target)
        _sync(target.parent)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        # the name of the temporary file does not help the user
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}; nothing was written", str(target)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _lock(file: IO[bytes]) -> bool:
    """Take a lock that ends with the process, so that the file of a killed one can be told from one in use.

    False if another process has it, or if the platform or the file system has no locks.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(folder: Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote."""
    for path in folder.glob(f"{_TEMPORARY}*.tmp"):
        with suppress(OSError):
            age = time.time() - path.stat().st_mtime
            if age > _ABANDONED or (age > _JUST_OPENED and not _is_locked(path)):
                path.unlink()


def _is_locked(path: Path) -> bool:
    with open(path, "rb+") as file:
        return not _lock(file)


def _sync(folder: Path) -> None:
    """Write the new name in a folder to the disk, if the platform supports it."""
    with suppress(OSError, AttributeError):  # other platforms cannot open a folder
        opened = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """`whole_file` on a disk or behind a URL, where it is up to the store whether an error leaves the old file."""
    if not is_url(path):
        with whole_file(Path(path)) as file:
            yield file
        return
    buffer = io.BytesIO()
    yield buffer
    with _remote(path, "write") as (file_system, root):
        file_system.pipe_file(root, buffer.getvalue())


def write(path: str, content: bytes) -> None:
    """Write a whole file, or leave the old one unchanged."""
    with _new_file(path) as file:
        file.write(content)


def read(path: str) -> bytes:
    if not is_url(path):
        return Path(path).read_bytes()
    with _remote(path, "read") as (file_system, root):
        return bytes(file_system.cat_file(root))


def names(folder: str) -> list[str]:
    """The sorted names in a folder; empty if the folder does not exist."""
    try:
        if not is_url(folder):
            return sorted(os.listdir(folder))
        with _remote(folder, "list") as (file_system, root):
            return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in file_system.ls(root, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove(folder: str) -> None:
    """Remove a folder with its content, if it exists."""
    if not is_url(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(FileNotFoundError), _remote(folder, "remove") as (file_system, root):
        file_system.rm(root, recursive=True)


def save(path: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays of numbers or text, and a header that JSON can represent."""
    wrong = [name for name, array in arrays.items() if array.dtype.kind not in "biufU"]
    if wrong:
        raise TypeError(f"checkpoint arrays must be numbers or text; {wrong[0]!r} has dtype {arrays[wrong[0]].dtype}")
    entries: dict[str, Any] = {_HEADER: np.array(json.dumps(header)), **arrays}
    with _new_file(path) as file:
        np.savez(file, **entries)


def load(path: str, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header and the arrays. Raises ValueError if the file is damaged or of another kind."""
    with io.BytesIO(read(path)) if is_url(path) else open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            header = json.loads(str(arrays.pop(_HEADER)))
            found = header["kind"]
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged or is not a dmtrl checkpoint file") from error
    if found != kind:
        raise ValueError(f"{path} holds a {found!r}, not a {kind!r}; another version of dmtrl may have written it")
    return header, arrays
