"""How functions are compiled, and numba's cache of them on disk.

numba recompiles a function when its own file changes, but not when a function that it inlines from another file does.
What is done here concerns the functions of dmtrl only: numba's events, its options and its cache stay as they are for
other libraries in the process.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.compiler import Compiler

try:
    import fcntl
except ImportError:  # Windows: processes then compile side by side
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("dmtrl")

# Sums may be reordered (SIMD); NaN and infinity keep their meaning, unlike under full fastmath. A loop of a fast
# function that LLVM could turn into SIMD must not both sum and write to an array: LLVM then asks at run time whether
# the arrays overlap, takes the loop without SIMD where they lie so close that it cannot exclude it, and the bits depend
# on the addresses.
FAST = {"reassoc", "contract", "nsz", "arcp"}

# Options of njit: KERNEL for a function that Python calls, INNER for one that only compiled functions call, SCALAR for
# one that both call. What they leave out (checks for division by zero, wrappers for callers that do not exist) would
# take time to compile. All say whether they are fast: numba gives a function that does not the fastmath and error_model
# of the caller for which it is compiled first, so that its bits would depend on what ran before.
_PLAIN: dict[str, Any] = {"fastmath": False, "error_model": "numpy", "no_cfunc_wrapper": True}
KERNEL = _PLAIN | {"cache": True, "nogil": True}
KERNEL_FAST = KERNEL | {"fastmath": FAST}
INNER = _PLAIN | {"no_cpython_wrapper": True}
INNER_FAST = INNER | {"fastmath": FAST}
SCALAR = _PLAIN | {"cache": True, "fastmath": FAST}


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


def njit(cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba's njit for a function of dmtrl: says when it compiles, and keeps a cache that processes can share."""

    def decorate(function: Callable[..., Any]) -> Any:
        compiled: Any = numba.jit(pipeline_class=_AnnouncedCompiler, **options | {"nopython": True})(function)
        if cache and hasattr(compiled, "enable_caching"):  # numba leaves functions as they are under NUMBA_DISABLE_JIT
            compiled._cache = _SharedCache(function)
        return compiled

    return decorate


class _AnnouncedCompiler(Compiler):
    """Logs one line when a process first compiles a function of dmtrl: without it, a fit would wait in silence.

    numba creates a compiler only for a function that its cache on disk does not have.
    """

    _announced = False

    def define_pipelines(self) -> Any:
        if not _AnnouncedCompiler._announced:
            _AnnouncedCompiler._announced = True
            logger.warning(
                "dmtrl: compiling for this kind of rows and loss, which takes a few seconds; numba keeps the result"
            )
        return super().define_pipelines()


class _SharedCache(FunctionCache):
    """numba's cache of one function, for processes that compile at the same time.

    numba numbers the files of a function and lists them in an index, which it reads, changes and writes again. Two
    processes that compile the function for different types at the same moment can choose the same number; the index
    then names machine code for the wrong types, for good. So a process locks the folder while it reads or writes these
    files, which takes milliseconds. No lock is held while a function is compiled: processes that start cold compile
    side by side.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with _locked(self.cache_path, shared=True):
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        with _locked(self.cache_path, shared=False):
            super().save_overload(sig, data)


@contextmanager
def _locked(folder: str, shared: bool) -> Iterator[None]:
    file = -1
    if fcntl is not None:
        with suppress(OSError):  # the folder cannot be written, or its file system has no locks
            file = os.open(Path(folder) / "dmtrl.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        if file >= 0:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        if file >= 0:
            with suppress(OSError):  # closing alone would leave the lock to a forked process
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)
