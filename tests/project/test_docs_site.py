"""The documentation site, without building it: every page and every public name has its place. `make docs` builds it.

Also the facts that a release states more than once.
"""

import importlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dmtrl

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
API = DOCS / "api" / "index.rst"
MODULES = ("dmtrl.losses", "dmtrl.datasets")  # whose public names are all in the reference
NOT_SHOWN = {  # names in the __all__ of a module that are constants, types or documented elsewhere
    "dmtrl.losses": {
        "AnyLoss",
        "BUILTIN",
        "CLASSIFICATION",
        "CustomLoss",
        "Loss",
        "REGRESSION",
        "get_loss",
        "identity",
    },
    "dmtrl.datasets": set(),
}


def entries(page: Path, directive: str) -> Iterator[tuple[str, str]]:
    """(current module, entry) of every entry of a directive on a page."""
    module, inside = "", False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule::"):
            module = line.split()[-1]
        if not line.startswith(" ") and line.strip():
            inside = line.startswith(f".. {directive}::")
        elif inside and line.strip() and not line.strip().startswith(":"):
            yield module, line.strip()


def test_every_page_is_in_exactly_one_table_of_contents() -> None:
    found: Counter[Path] = Counter()
    for page in [*DOCS.glob("*.rst"), API]:
        for _, entry in entries(page, "toctree"):
            found[(page.parent / entry).resolve()] += 1
    top = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    pages = [*DOCS.glob("*.md"), *(ROOT / "examples").glob("*.md"), *top]
    expected = {page.with_suffix("") for page in pages if page.name != "README.md"}
    expected |= {page.with_suffix("") for page in DOCS.glob("*.rst") if page.name != "index.rst"}
    expected |= {API.with_suffix(""), DOCS / "api" / "generated" / "commands"}
    assert expected - set(found) == set(), "add these pages to a toctree in docs/*.rst"
    assert set(found) - expected == set(), "these entries lead nowhere"
    assert set(found.values()) == {1}


def test_every_example_has_a_card() -> None:
    linked = re.findall(r":link: \.\./examples/(\w+)", (DOCS / "gallery.rst").read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(page.stem for page in (ROOT / "examples").glob("*.md") if page.name != "README.md")


def test_every_public_name_is_in_the_reference() -> None:
    shown = Counter(f"{module}.{name}" for module, name in entries(API, "autosummary"))
    assert {name for name, count in shown.items() if count > 1} == set()
    missing = {f"dmtrl.{name}" for name in dmtrl.__all__} - set(shown)
    assert missing == set(), "add these names to docs/api/index.rst"
    for module in MODULES:
        names = set(importlib.import_module(module).__all__) - NOT_SHOWN[module]
        assert {f"{module}.{name}" for name in names} - set(shown) == set()


@pytest.mark.parametrize(("module", "name"), sorted(set(entries(API, "autosummary"))))
def test_every_entry_of_the_reference_exists_and_is_described(module: str, name: str) -> None:
    *inner, last = name.split(".")
    found = getattr(importlib.import_module(".".join([module, *inner])), last)
    assert (found.__doc__ or "").strip()


def test_the_site_has_no_addresses_of_scripts_on_other_machines() -> None:
    settings = (DOCS / "conf.py").read_text(encoding="utf-8")
    assert "http" not in settings, "what the pages load is part of the site"


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/dmtrl/__init__.py"
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {dmtrl.__version__}\n" in citation, "CITATION.cff names another version"


def test_continuous_integration_covers_what_the_project_claims() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    minors = [label.rpartition(" ")[2] for label in project["classifiers"] if ":: Python :: 3." in label]
    assert minors[0] == project["requires-python"].removeprefix(">=")
    for minor in minors:
        assert f'"{minor}"' in workflow
    for command in ("make test-minimum", "make docs", "make dist", "make test"):
        assert f"run: {command}" in workflow
