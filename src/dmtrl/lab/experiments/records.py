"""Records of experiments: one JSON object per line, appended when a run ends and never changed.

Pages are made from records alone, so they can be made again without computing.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """One run of an experiment.

    Attributes
    ----------
    experiment : str
    params : dict
        What distinguishes this run from the others of its experiment.
    settings : dict
        What all runs have in common: loss, lambdas, seed, rounds.
    figures : dict
        The results: numbers, lists of numbers, names.
    seconds : float
    versions, machine
        Where the run took place.
    """

    experiment: str
    params: Params
    settings: Params
    figures: Mapping[str, Any]
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""

    @property
    def key(self) -> str:
        return run_key(self.experiment, self.params, self.settings)


def run_key(experiment: str, params: Params, settings: Params) -> str:
    """Two runs with the same key are the same run. Other settings give another key."""
    return json.dumps([experiment, _plain(params), _plain(settings)], sort_keys=True)


def versions() -> dict[str, str]:
    names = ("dmtrl", "numpy", "scipy", "numba", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


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


def machines(records: Sequence[Record]) -> str:
    """Return where the runs took place."""
    return "; ".join(sorted({record.machine for record in records}))


class Store:
    """The records in one folder. An incomplete last line, from a killed run, is ignored and overwritten."""

    def __init__(self, folder: Path):
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
        line = json.dumps(_plain(asdict(record)), allow_nan=True) + "\n"
        with open(self.path, "ab+") as file:
            _drop_incomplete_line(file)
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _drop_incomplete_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    whole = file.read().rfind(b"\n") + 1
    file.truncate(whole)
    file.seek(0, os.SEEK_END)


def _plain(value: Any) -> Any:
    """Convert numpy numbers and arrays, tuples and mappings to JSON types. Floats keep seven digits."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return float(f"{value:.7g}") if isinstance(value, float) else value
