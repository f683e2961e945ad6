"""Keeps numba's disk cache true to the source.

numba recompiles a function when the file that defines it changes, but not when a function that it inlines from another
file does.
"""

from contextlib import suppress
from pathlib import Path


def discard_stale(compiled: str, *inlined: str) -> None:
    """Remove the cached machine code of the file `compiled` where it is older than a file that it inlines."""
    source = Path(compiled)
    changed = max(Path(path).stat().st_mtime for path in inlined)
    for cached in source.parent.joinpath("__pycache__").glob(f"{source.stem}.*.nb[ci]"):
        with suppress(OSError):  # another process may remove it at the same moment
            if cached.stat().st_mtime < changed:
                cached.unlink()
