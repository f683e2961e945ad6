"""Run a command several times beside busy loops: `python tests/support/busy.py --loops 4 --times 3 -- make test`.

Prints the duration of each run, and fails if one of them failed. The loops end with this process, however it ends.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# Ends when its parent changes: also after kill -9 of this process.
LOOP = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    sum(range(1_000_000))
"""


@contextmanager
def busy_loop() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", LOOP, str(os.getpid())]) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the loops are stopped
    results: list[tuple[float, int]] = []
    with ExitStack() as stack:
        for _ in range(options.loops):
            stack.enter_context(busy_loop())
        for number in range(1, options.times + 1):
            print(f"Run {number} of {options.times} beside {options.loops} busy loops ...", flush=True)
            began = time.monotonic()
            code = subprocess.run(options.command, check=False).returncode
            results.append((time.monotonic() - began, code))
    for number, (seconds, code) in enumerate(results, 1):
        verdict = "passed" if code == 0 else f"failed with exit code {code}"
        print(f"Run {number} beside {options.loops} busy loops: {seconds / 60:.1f} minutes, {verdict}")
    return int(any(code for _, code in results))


if __name__ == "__main__":
    sys.exit(main())
