"""Five hundred damaged files, options and models: no traceback, one sentence, nothing half written."""

from pathlib import Path

import pytest

from support.fuzz import case, prepare

CASES, PART = 500, 100


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    prepare(folder)
    return folder


@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_damaged_files_are_refused_in_one_line(clean: Path, first: int) -> None:
    wrong = [found for seed in range(first, first + PART) if (found := case(seed, clean)) is not None]
    assert not wrong, wrong[0]
