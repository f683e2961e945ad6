"""The structure of the library: imports point down only, and files stay short."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.minimum_versions import PROJECTS, minimum_versions

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 550


@pytest.mark.subprocess
def test_imports_point_down_only() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_files_fit_on_a_few_screens() -> None:
    lines = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for folder in ("src", "lab")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert lines, "no source files found under src and lab"
    too_long = {str(path): n for path, n in lines.items() if n > MAX_LINES}
    assert not too_long, f"files of more than {MAX_LINES} lines, to be split: {too_long}"


@pytest.mark.subprocess
def test_names_are_loaded_when_they_are_used() -> None:
    code = (
        "import sys, dmtrl; from dmtrl.cli.main import main; "
        "heavy = {'numba', 'sklearn', 'scipy', 'pandas', 'matplotlib', 'plotly'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); "
        "from dmtrl_lab.cli.main import main as lab; assert not heavy & set(sys.modules); "
        "missing = [name for name in dmtrl.__all__ if not hasattr(dmtrl, name)]; assert not missing, missing; "
        "assert callable(dmtrl.solve) and set(dmtrl.__all__) == set(dmtrl._HOME_OF) <= set(dir(dmtrl))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dependencies_state_minimum_versions_and_nothing_else() -> None:
    names = {line.partition("==")[0] for project in PROJECTS for line in minimum_versions(project)}
    assert {"numpy", "nvflare", "pytest", "mypy", "sphinx"} <= names
