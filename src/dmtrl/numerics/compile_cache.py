"""Invalidates numba's disk cache when inlined code changes.

numba recompiles a function when its own file changes, but not when a function that it inlines from another file does.
"""

import os
from contextlib import suppress
from pathlib import Path


def discard_stale(compiled: str, *inlined: str) -> None:
    """Remove the cached machine code of the file `compiled` if it is older than a file in `inlined`."""
    source = Path(compiled)
    changed = max(Path(path).stat().st_mtime for path in inlined)
    folders = [source.parent / "__pycache__"]
    if "NUMBA_CACHE_DIR" in os.environ:  # numba then adds a hash of the path to the name of the folder
        folders += Path(os.environ["NUMBA_CACHE_DIR"]).glob(f"{source.parent.name}_*")
    for folder in folders:
        for cached in folder.glob(f"{source.stem}.*.nb[ci]"):
            with suppress(OSError):  # another process may remove it at the same moment
                if cached.stat().st_mtime < changed:
                    cached.unlink()
