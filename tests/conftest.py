"""Fixtures that all tests share, and the plugins: markers that are true, and how long each test takes."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from support import browser as browsers
from support.homes import Home

ROOT = Path(__file__).resolve().parents[1]
pytest_plugins = ["support.started", "support.durations", "pytester"]

# No deadline: a first call may compile a kernel. Derandomised: a failure repeats on the next run.
hypothesis.settings.register_profile("dmtrl", deadline=None, derandomize=True)
hypothesis.settings.load_profile("dmtrl")


class SharedData:
    """The folder of real data sets; `shared_data / "school.npz"` is a path, or skips the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __truediv__(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            pytest.skip(f"{name} is not in {self.folder}; set DMTRL_DATA to the folder that holds it.")
        return path


@pytest.fixture(scope="session")
def shared_data() -> SharedData:
    """Real data sets: the folder named by DMTRL_DATA, else `shared/data` beside the repository."""
    return SharedData(Path(os.environ.get("DMTRL_DATA") or ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsers.Browser]:
    """A headless Chromium, started once; see tests/support/browser.py."""
    yield from browsers.start(tmp_path_factory.mktemp("chromium"))


@pytest.fixture
def home() -> Iterator[Home]:
    """A local server of data sets."""
    home = Home()
    yield home
    home.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of data sets, without DMTRL_DATA and without a proxy for 127.0.0.1."""
    for name in ("DMTRL_DATA", "DMTRL_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("DMTRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
