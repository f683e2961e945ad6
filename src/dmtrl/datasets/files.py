"""Find and read the archives of data sets.

The search order is: the given folder, the environment variable DMTRL_DATA, the cache folder. `download` fetches an
archive that is in none of them.
"""

import os
import sys
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np


def cache_folder() -> Path:
    """The environment variable DMTRL_CACHE, or the cache folder of the platform. It may not exist yet."""
    if chosen := os.environ.get("DMTRL_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dmtrl"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "dmtrl" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dmtrl"


def search_folders(folder: str | Path | None = None) -> list[Path]:
    """The folders that are searched for a data file, in order."""
    given = [] if folder is None else [folder]
    from_environment = [os.environ["DMTRL_DATA"]] if os.environ.get("DMTRL_DATA") else []
    return [Path(path).expanduser() for path in (*given, *from_environment, cache_folder())]


def find_file(name: str, folder: str | Path | None = None) -> Path:
    """The path of an existing data file. Raises FileNotFoundError with the searched folders."""
    searched = search_folders(folder)
    for path in searched:
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(
        f"{name} was not found in {' or '.join(map(str, searched))}; copy the file there, or set the environment "
        "variable DMTRL_DATA to its folder"
    )


def read_arrays(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """The named arrays of a numpy archive, without pickle."""
    try:
        # checked first: for other files numpy suggests pickle, and it leaves a truncated file open
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a numpy archive")
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive.files]
            if missing:
                raise ValueError(f"it has no array named {', '.join(missing)}")
            return {name: archive[name] for name in names}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise ValueError(f"{path} is not the expected data file or is truncated ({error}); replace it") from error
