"""Where data files lie, and how an archive is read so that a damaged one is told in a sentence.

Room: datasets. A file is looked for in the folder that was given, then in the one named by the environment variable
DMTRL_DATA, then in the cache folder; `download` goes on from there.
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


def places(folder: str | Path | None = None) -> list[Path]:
    """The folders a data file is looked for in, first to last."""
    given = [] if folder is None else [folder]
    named = [os.environ["DMTRL_DATA"]] if os.environ.get("DMTRL_DATA") else []
    return [Path(place).expanduser() for place in (*given, *named, cache_folder())]


def find_file(name: str, folder: str | Path | None = None) -> Path:
    """The path of a data file that is there; a FileNotFoundError says where it was looked for."""
    for place in places(folder):
        if (place / name).is_file():
            return place / name
    looked = " and ".join(map(str, places(folder)))
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
