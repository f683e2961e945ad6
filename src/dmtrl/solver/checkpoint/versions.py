"""Versions of a checkpoint on disk.

`<path>/version-000007-1f3c9a02/` holds one file per worker, written by the worker itself, one file of the coordinator,
and a manifest that is written last: a version without a manifest is incomplete and ignored. The second part of the name
is the run's mark, so that two runs that start at the same moment in one folder do not mix their files.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from dmtrl import storage
from dmtrl.exceptions import NoCheckpointError
from dmtrl.solver.checkpoint.options import PathLike, absolute

FORMAT = 6
_KIND = "dmtrl checkpoint"
_STATE, _MANIFEST = "coordinator.npz", "manifest.json"
_NAME = re.compile(r"version-([0-9]{6,})-([0-9a-f]{8})")
_FILES = re.compile(r"coordinator\.npz|manifest\.json|worker-[0-9]+-[0-9]+(-[0-9]+)?\.npz|\..*")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Version:
    """A version that was read: its folder, the coordinator's header and its arrays."""

    folder: str
    header: Mapping[str, Any]
    arrays: Arrays


def folder_of(home: str, number: int, mark: str) -> str:
    return storage.join(home, f"version-{number:06d}-{mark}")


def number_of(path: str) -> int:
    """The number of a version, by the name of its folder; 0 for any other folder."""
    found = _NAME.fullmatch(storage.split(path)[1])
    return int(found[1]) if found else 0


def mark_of(path: str) -> str:
    """The mark of the run that wrote a version."""
    found = _NAME.fullmatch(storage.split(path)[1])
    return found[2] if found else ""


def is_complete(version: str) -> bool:
    return _MANIFEST in storage.names(version)


def versions_in(home: str) -> list[str]:
    """Folders of versions, the newest last."""
    return sorted((storage.join(home, name) for name in storage.names(home) if number_of(name)), key=number_of)


def home_of(path: PathLike) -> str:
    """The folder that contains the versions, from its own path or that of a version."""
    path = absolute(path).rstrip("/")
    return storage.split(path)[0] if number_of(path) else path


def newest(path: str) -> str | None:
    """The folder of the newest complete version at a path, which may itself be a version; None if there is none."""
    for folder in (*reversed(versions_in(path)), path):
        if not is_complete(folder):
            continue
        where = storage.join(folder, _MANIFEST)
        try:
            manifest = json.loads(storage.read(where))
            number = int(manifest["format"]) if manifest["kind"] == _KIND else 0
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # deleted meanwhile by its run, or cut short where a store does not write whole files
        if number != FORMAT:
            advice = "install a newer dmtrl" if number > FORMAT else "start again in another folder"
            raise ValueError(f"{where} has format {number}, but this dmtrl reads format {FORMAT}: {advice}")
        return folder
    return None


def free_subfolder(home: str) -> str:
    """A folder inside `home` without a checkpoint, for a run that starts again."""
    folders = (storage.join(home, f"again-{number}") for number in count(1))
    return next(folder for folder in folders if newest(folder) is None)


def read(path: str) -> Version:
    """The newest complete version at a path."""
    folder = newest(path)
    if folder is None:
        raise NoCheckpointError(path)
    where = storage.join(folder, _STATE)
    try:
        header, arrays = storage.load(where, _KIND)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{where} is missing, so this version cannot be resumed; name the version before it, if there is one"
        ) from error
    return Version(folder, header, arrays)


def write(folder: str, header: Mapping[str, Any], arrays: Arrays, worker_files: Sequence[str]) -> None:
    """Write the coordinator's file and then the manifest; the workers have written theirs."""
    storage.make_folder(folder)  # the workers created it too, but perhaps on another machine
    storage.save(storage.join(folder, _STATE), {"kind": _KIND, **header}, arrays)
    files = [_STATE, *sorted(worker_files)]
    missing = set(files) - set(storage.names(folder))
    if missing:
        raise OSError(
            f"a worker wrote {min(missing)} where the coordinator cannot see it; with several machines the path must "
            "be a shared folder or a URL"
        )
    manifest = {"kind": _KIND, "format": FORMAT, "run": header["run"], "files": files}
    storage.write(storage.join(folder, _MANIFEST), json.dumps(manifest, indent=1).encode())


def remove(version: str) -> None:
    """Remove a version, unless it contains files that are not a checkpoint's."""
    if all(map(_FILES.fullmatch, storage.names(version))):
        storage.remove(version)
