"""Invalidates numba's disk cache when inlined code changes.

numba recompiles a function when its own file changes, but not when a function that it inlines from another file does.
"""

from contextlib import suppress
from pathlib import Path


def discard_stale(compiled: str, *inlined: str) -> None:
    """Remove the cached machine code of the file `compiled` if it is older than a file in `inlined`."""
    source = Path(compiled)
    changed = max(Path(path).stat().st_mtime for path in inlined)
    for cached in source.parent.joinpath("__pycache__").glob(f"{source.stem}.*.nb[ci]"):
        with suppress(OSError):  # another process may have removed it
            if cached.stat().st_mtime < changed:
                cached.unlink()
