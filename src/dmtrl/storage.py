"""Files that are whole or not there, and those of a checkpoint: numbers and a header in one numpy archive.

Room: the ground. No pickle. What people and checkpoints keep on a disk goes through `whole_file`: to a temporary name,
which is then renamed, both synced. A checkpoint may also lie behind any fsspec URL, each file written in one piece.
Whatever goes wrong here is an OSError, whichever package it came from.
"""

import hashlib
import io
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

_HEADER = "header"


def is_url(path: str) -> bool:
    return "://" in path or "::" in path


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def split(path: str) -> tuple[str, str]:
    """A folder, and the name in it."""
    if not is_url(path):
        return os.path.split(path)
    folder, _, name = path.rpartition("/")
    return folder, name


def _remote(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise OSError(f'{url} is a URL, which takes fsspec: pip install "dmtrl[ray]"') from error
    try:
        file_system, root = fsspec.core.url_to_fs(url)
        file_system.invalidate_cache()
    except Exception as error:  # an unknown protocol, a package for it that is not there, or what the store says
        raise OSError(f"cannot open {url}: {error}") from error
    return file_system, root


def digest(*arrays: np.ndarray, words: str = "") -> str:
    """Of numbers with their types and shapes, and of words."""
    found = hashlib.sha256(words.encode())
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def check_folder(folder: str) -> None:
    """Refuse a folder that is none or cannot be made; nothing is made yet."""
    if is_url(folder):
        _remote(folder)
        return
    place = Path(folder)
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(f"nothing may be written in {place}")


def make_folder(folder: str) -> None:
    if not is_url(folder):
        os.makedirs(folder, exist_ok=True)
        return
    file_system, root = _remote(folder)
    try:
        file_system.makedirs(root, exist_ok=True)
    except Exception as error:
        raise OSError(f"cannot make the folder {folder}: {error}") from error


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """A new file to write into, which takes the place of `target` if all goes well; otherwise that stays as it was."""
    temporary = target.with_name(f".dmtrl-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb+") as file:
            yield file
        with open(temporary, "rb+") as written:  # a compressed stream may have closed the file below it
            os.fsync(written.fileno())
        if target.exists():
            with suppress(OSError):  # some file systems know no modes
                os.chmod(temporary, target.stat().st_mode)
        os.replace(temporary, target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Where a folder can be synced, the new name in it reaches the disk too."""
    with suppress(OSError, AttributeError):  # elsewhere a folder cannot be opened
        opened = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write(path: str, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """In the end the whole file is there, or what was there before (behind a URL: as far as its store promises)."""
    if is_url(path):
        file_system, root = _remote(path)
        if not isinstance(content, bytes):
            buffer = io.BytesIO()
            content(buffer)
            content = buffer.getvalue()
        try:
            file_system.pipe_file(root, content)
        except Exception as error:
            raise OSError(f"cannot write {path}: {error}") from error
        return
    with whole_file(Path(path)) as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)


def read(path: str) -> bytes:
    if not is_url(path):
        return Path(path).read_bytes()
    file_system, root = _remote(path)
    try:
        return bytes(file_system.cat_file(root))
    except FileNotFoundError:
        raise
    except Exception as error:
        raise OSError(f"cannot read {path}: {error}") from error


def names(folder: str) -> list[str]:
    """What lies in a folder; nothing where there is no folder."""
    if not is_url(folder):
        try:
            return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
    file_system, root = _remote(folder)
    try:
        return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in file_system.ls(root, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except Exception as error:
        raise OSError(f"cannot list {folder}: {error}") from error


def remove(folder: str) -> None:
    """A folder with all that is in it, if it is there."""
    if not is_url(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    file_system, root = _remote(folder)
    try:
        file_system.rm(root, recursive=True)
    except FileNotFoundError:
        pass
    except Exception as error:
        raise OSError(f"cannot remove {folder}: {error}") from error


def save(path: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays of numbers or text, and a header that JSON can hold."""
    wrong = [name for name, array in arrays.items() if array.dtype.kind not in "biufU"]
    if wrong:
        raise TypeError(f"a checkpoint holds numbers and text; {wrong[0]!r} has dtype {arrays[wrong[0]].dtype}")
    entries = {_HEADER: np.array(json.dumps(header)), **arrays}
    write(path, lambda file: np.savez(file, **entries))  # type: ignore[arg-type]


def load(path: str, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays; ValueError for what is damaged, or is no file of this kind."""
    with io.BytesIO(read(path)) if is_url(path) else open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            header = json.loads(str(arrays.pop(_HEADER)))
            found = header["kind"]
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a file of a dmtrl checkpoint, or is damaged") from error
    if found != kind:
        raise ValueError(f"{path} holds a {found!r}, where a {kind!r} was expected; another dmtrl may have written it")
    return header, arrays
