"""How functions are compiled, and numba's cache of them on disk.

numba recompiles a function when its own file changes, but not when a function that it inlines from another file does.
"""

import logging
import os
import tempfile
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core import event

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


class _Notice(event.Listener):
    """Logs one line when a process first compiles a function of dmtrl: without it, a fit would wait in silence.

    numba sends the event only for a function that its cache on disk does not have.
    """

    def __init__(self) -> None:
        self._shown = False

    def on_start(self, compilation: Any) -> None:
        if not self._shown and compilation.data["dispatcher"].py_func.__module__.startswith("dmtrl."):
            self._shown = True
            logger.warning(
                "dmtrl: compiling for this kind of rows and loss, which takes a few seconds; numba keeps the result"
            )

    def on_end(self, compilation: Any) -> None:
        pass


class _OneAtATime(event.Listener):
    """Lets one process at a time compile for a cache; the others then find the result there.

    Without it, the actors of a node or the processes of a pool would all compile the same functions at the same moment.
    numba sends "numba:compiler_lock" before it looks into the cache, and saves the result before that event ends. A
    function without a cache, such as a kernel of a custom loss, is compiled outside the lock: every process needs its
    own. While numba compiles a function with a cache for it, the lock is held again.
    """

    def __init__(self) -> None:
        self._depth = self._compiling = 0  # nested events
        self._guard, self._file, self._locked_at = threading.Lock(), -1, 0
        cache = zlib.crc32(f"{__file__}:{os.environ.get('NUMBA_CACHE_DIR')}:{os.getuid()}".encode())
        self._name = Path(tempfile.gettempdir()) / f"dmtrl-compile-{cache:08x}.lock"

    def on_start(self, happened: event.Event) -> None:
        with self._guard:
            if happened.kind == "numba:compile":
                self._compiling += 1
                if _has_cache(happened.data["dispatcher"]):
                    self._lock()
                elif self._compiling == 1:
                    self._unlock()
                return
            self._depth += 1
            if self._depth == 1:
                try:
                    self._lock()
                except BaseException:  # an interrupt: numba does not send the end of this event
                    self._depth -= 1
                    self._unlock()
                    raise

    def on_end(self, happened: event.Event) -> None:
        with self._guard:
            if happened.kind == "numba:compile":
                self._compiling -= 1
                return
            self._depth -= 1
            if self._depth < self._locked_at:
                self._unlock()

    def _lock(self) -> None:
        if self._file < 0:
            with suppress(OSError):  # no folder for temporary files, or one without locks
                self._file = os.open(self._name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                self._locked_at = self._depth
                fcntl.flock(self._file, fcntl.LOCK_EX)

    def _unlock(self) -> None:
        if self._file >= 0:
            with suppress(OSError):  # closing alone would leave the lock to a forked process
                fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = -1


def _has_cache(dispatcher: Any) -> bool:
    stats = getattr(dispatcher, "stats", None)  # a loop that numba lifts out of a function has none
    return stats is not None and stats.cache_path is not None


event.register("numba:compile", _Notice())
if fcntl is not None:
    _one_at_a_time = _OneAtATime()
    event.register("numba:compiler_lock", _one_at_a_time)
    event.register("numba:compile", _one_at_a_time)
