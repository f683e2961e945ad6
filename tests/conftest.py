"""What all tests share: the real data sets where they are at hand, and repeatable random examples."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import browser as browsers

ROOT = Path(__file__).resolve().parents[1]

# No deadline: a first call may compile a kernel. Derandomised: a red test is red again on the next run.
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
    """A headless Chromium, started once; see tests/browser.py."""
    yield from browsers.start(tmp_path_factory.mktemp("chromium"))
