"""docs/architecture.md names only files, functions and folders that exist, and its lists are complete."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dmtrl"
LAB = ROOT / "lab" / "src" / "dmtrl_lab"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```text\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE))))
STEPS = [span for span in SPANS if re.fullmatch(r"[\w/]+\.py: [\w.]+", span)]
PATHS = [span for span in SPANS if re.fullmatch(r"[\w/]+(\.py|\.toml|/)", span)]
MEMBERS = [span for span in SPANS if re.fullmatch(r"_?[A-Z]\w+\.\w+", span)]


def targets(nodes: list[ast.stmt]) -> Iterator[str]:
    """The names that statements define: functions, classes, variables and annotated fields."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def defined(file: Path) -> frozenset[str]:
    """The names of a module, and those of its classes as `Class.name`."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    members = {f"{node.name}.{name}" for node in body if isinstance(node, ast.ClassDef) for name in targets(node.body)}
    return frozenset(members | set(targets(body)))


def tree(block: str) -> Iterator[Path]:
    """The paths of a folder tree. A line is names separated by commas, then a remark."""
    folders: list[str] = []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        del folders[depth:]
        for name in re.match(r"[\w./]+(, [\w./]+)*", line.lstrip())[0].split(", "):  # type: ignore[index]
            yield Path(*folders, name)
            if name.endswith("/"):
                folders.append(name)


def test_the_page_is_read() -> None:
    assert len(STEPS) > 40
    assert len(PATHS) > 20
    assert MEMBERS
    broken = [line for line in PAGE.splitlines() if line.count("`") % 2 and not line.startswith("```")]
    assert not broken, f"a name over two lines would not be checked: {broken}"


@pytest.mark.parametrize("step", STEPS)
def test_functions_are_defined_in_the_file_that_the_page_names(step: str) -> None:
    path, name = step.split(": ")
    assert (SOURCE / path).is_file(), f"{path} does not exist"
    assert name in defined(SOURCE / path), f"{path} does not define {name}"


@pytest.mark.parametrize("path", PATHS)
def test_paths_exist(path: str) -> None:
    assert (SOURCE / path).exists() or (ROOT / path).exists()


@pytest.mark.parametrize("member", MEMBERS)
def test_members_of_classes_exist(member: str) -> None:
    assert any(member in defined(file) for file in SOURCE.rglob("*.py"))


@pytest.mark.parametrize(("block", "source"), [(BLOCKS[0], SOURCE), (BLOCKS[1], LAB)], ids=["dmtrl", "dmtrl_lab"])
def test_the_folder_tree_is_that_of_the_source(block: str, source: Path) -> None:
    """The tree need not open every folder, but shows all of a folder that it opens."""
    shown = set(tree(block))
    missing = sorted(str(path) for path in shown if not (source / path).exists())
    assert not missing, f"the tree shows what does not exist: {missing}"
    present = {
        path.relative_to(source)
        for folder in {path.parent for path in shown}
        for path in (source / folder).iterdir()
        if (path.is_dir() and path.name != "__pycache__") or (path.suffix == ".py" and path.name != "__init__.py")
    }
    absent = sorted(map(str, present - shown))
    assert not absent, f"the tree does not show {absent}"


def test_the_import_rule_is_that_of_the_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert BLOCKS[2].splitlines() == settings["tool"]["importlinter"]["contracts"][0]["layers"]
