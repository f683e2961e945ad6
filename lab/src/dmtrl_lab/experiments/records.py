"""Records of experiments: one JSON object per line, appended when a run ends and never changed.

Pages are made from records alone, so they can be made again without computing.
"""

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dmtrl_lab.experiments.experiment import Record, plain


def versions() -> dict[str, str]:
    """Return the versions of what computes: Python, dmtrl and its dependencies, and other methods if installed."""
    found = {"python": platform.python_version()}
    for name in ("dmtrl", "numpy", "scipy", "numba", "scikit-learn", "gpboost", "lightgbm", "statsmodels"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> str:
    """Return the processor and the number of cores that this process may use."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores"


class Store:
    """The records in one folder. An incomplete last line, from a killed run, is ignored and overwritten."""

    def __init__(self, folder: Path):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; --out must name a folder")
        self.path = folder / "records.jsonl"

    def read(self) -> dict[str, Record]:
        """Return every record by its key."""
        if not self.path.exists():
            return {}
        records = {}
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                record = Record(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number} is not a record of an experiment ({error}); remove the line, or "
                    "choose another folder with --out"
                ) from error
            records[record.key] = record
        return records

    def append(self, record: Record) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(json.dumps(plain(asdict(record))).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
