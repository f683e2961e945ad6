"""Where data files lie, and how an archive is read so that a damaged one is told in a sentence.

Room: datasets. A file is looked for in the folder that was given; else in the folder named by the environment variable
DMTRL_DATA, then in the cache folder.
"""

import os
import sys
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np


def cache_folder() -> Path:
    """DMTRL_CACHE, or the place where this platform keeps what can be fetched again. It need not exist."""
    if chosen := os.environ.get("DMTRL_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dmtrl"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "dmtrl" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dmtrl"


def find_file(name: str, folder: str | Path | None = None) -> Path:
    """The path of a data file; a FileNotFoundError says where it was looked for."""
    if folder is not None:
        folders = [Path(folder).expanduser()]
    else:
        named = os.environ.get("DMTRL_DATA")
        folders = [Path(named).expanduser(), cache_folder()] if named else [cache_folder()]
    for place in folders:
        if (place / name).is_file():
            return place / name
    looked = " and ".join(str(place) for place in folders)
    raise FileNotFoundError(
        f"{name} was not found in {looked}; put the file there, or set the environment variable DMTRL_DATA "
        "to the folder that holds it"
    )


def read_arrays(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """The named arrays of a numpy archive. Nothing pickled is ever loaded."""
    try:
        # asked first: of a foreign file numpy would say that it could be unpickled, and leave a cut one open
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no numpy archive")
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive.files]
            if missing:
                raise ValueError(f"it has no array named {', '.join(missing)}")
            return {name: archive[name] for name in names}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise ValueError(f"{path} is not the data file it should be, or was cut short ({error}); replace it") from error
