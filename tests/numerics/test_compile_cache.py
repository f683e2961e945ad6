"""Cached machine code is removed when a file that it inlines is newer, wherever numba keeps it."""

import os
from pathlib import Path

import pytest

from dmtrl.numerics.compile_cache import discard_stale


def test_only_stale_machine_code_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "elsewhere"))
    source, inlined = tmp_path / "worker" / "kernels.py", tmp_path / "scalar.py"
    folders = [tmp_path / "worker" / "__pycache__", tmp_path / "elsewhere" / "worker_0123"]
    for folder in folders:
        folder.mkdir(parents=True)
        for name, changed in (("kernels.f-1.py311.nbi", 1), ("kernels.g-2.py311.1.nbc", 3), ("other.f-1.py311.nbi", 1)):
            (folder / name).touch()
            os.utime(folder / name, (changed, changed))
    inlined.touch()
    os.utime(inlined, (2, 2))
    discard_stale(str(source), str(inlined))
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"kernels.g-2.py311.1.nbc", "other.f-1.py311.nbi"}
