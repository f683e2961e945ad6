"""Test the documentation: run every block and command in README.md, docs/ and examples/, and follow every link.

Each page runs from top to bottom in a temporary folder of its own:
- ```python blocks run and share their names. A ```text block right after one shows its output.
- ```console blocks are sessions. bash runs the lines that begin with "$ ", with the commands of this environment first
  on PATH; commands of dmtrl alone run in this process, except on the README. The lines below a command show its
  standard output; without such lines any output is accepted.
- tests/support/printed.py compares output with what the page shows, with a tolerance for numbers.
- Other ```text blocks only illustrate. A block without a kind is a session if its lines are commands, otherwise text.
`make`, `git` and `pip` do not run: they change the environment or run this test. NOT_RUN lists the other commands that
do not run, with the reason.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from conftest import SharedData
from dmtrl.cli.main import main
from dmtrl_lab.cli.main import main as lab
from support.printed import difference

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "README.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]  # without blocks that run

NOT_RUN = {
    "dmtrl-lab bench --out benchmarks": "takes long; test_bench says where each benchmark is tested",
    "dmtrl-lab bench startup": "takes a minute; test_bench_startup has its parts",
}

# pages that need a real data set (a file or folder in that of the shared_data fixture) or a package
DATA = {
    "examples/school.md": "school.npz",
    "examples/reviews.md": "mds.npz",
    "examples/wisdm.md": "wisdm.npz",
    "examples/hospitals.md": "heart",
}
PACKAGES = {"docs/notebooks.md": "onnxruntime"}
# pages whose blocks start more than processes of dmtrl
ON_RAY = {"README.md", "docs/scaling.md", "examples/cluster.md"}
MARKED = [
    pytest.param(page, marks=pytest.mark.ray if name in ON_RAY else ()) for page, name in zip(PAGES, NAMES, strict=True)
]

SET_UP = re.compile(r"(make|git|pip)( .*)?")
KINDS = {"python", "console", "text"}
COMMAND = re.compile(r"(make|pip|python3?|dmtrl|dmtrl-lab|\S*/bin/\w+)( .*)?")


@dataclass(frozen=True)
class Block:
    line: int  # of its first line of text, from 1
    kind: str
    lines: list[str]
    follows: bool  # directly after the block before, with nothing but empty lines between

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)


def read_blocks(page: Path) -> Iterator[Block]:
    fence, begin, kept, between = None, 0, [], True
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            kept.append(line)
            between &= fence is not None or not line.strip()
        elif fence is None:
            fence, begin, kept = line[3:].strip(), number + 1, []
        else:
            session = not fence and any(text.startswith("$ ") or COMMAND.fullmatch(text) for text in kept)
            yield Block(begin, fence or ("console" if session else "text"), kept, between)
            fence, kept, between = None, [], True
    assert fence is None, f"{page.name}: a block is not closed"


def prose(page: Path) -> str:
    """The page without its blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def sessions(block: Block) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, command, what it prints) of each command; a comment behind a command is not part of it."""
    found: list[tuple[int, str, list[str]]] = []
    prompts = any(line.startswith("$ ") for line in block.lines)
    for number, line in enumerate(block.lines, block.line):
        if line.startswith("$ ") if prompts else COMMAND.fullmatch(line):
            found.append((number, line.removeprefix("$ ").partition("  #")[0].strip(), []))
        elif found:
            found[-1][2].append(line)
    yield from found


def assert_printed(shown: list[str], printed: str, where: str) -> None:
    found = difference(shown, printed)
    if found:
        pytest.fail(f"{where}: {found}", pytrace=False)


def run_command(command: str, folder: Path, in_process: bool) -> str:
    """What a command printed, in a terminal of 80 columns. in_process: run dmtrl without a new process, if no other
    program or file takes part."""
    terminal = {"COLUMNS": "80", "TERM": "dumb"}
    if in_process and command.startswith("dmtrl ") and not set(command) & set("|<>&;$`*"):
        result = CliRunner(env=terminal).invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, f"$ {command}\nended with {result.exit_code}:\n{result.output}"
        return result.stdout
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **terminal, "PATH": path, "PYTHONWARNINGS": "error"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"$ {command}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("page", MARKED, ids=NAMES)
def test_blocks_and_commands_do_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_data: SharedData
) -> None:
    name = page.relative_to(ROOT).as_posix()
    if name in DATA:
        monkeypatch.setenv("DMTRL_DATA", str((shared_data / DATA[name]).parent))
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # the pages are written for the root of the repository
    names: dict[str, object] = {"__name__": "__main__"}
    found = list(read_blocks(page))
    for block, after in pairwise([*found, Block(0, "end", [], False)]):
        where = f"{page.name}:{block.line}"
        assert block.kind in KINDS, f"{where}: a block of kind {block.kind!r} would not be run"
        assert block.kind != "text" or "\n$ " not in "\n" + block.text, f"{where}: a session that would not be run"
        if block.kind == "python":
            printed = io.StringIO()
            # empty lines before it, so that an error names the line of the page
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, names)
            if after.kind == "text" and after.follows:
                assert_printed(after.lines, printed.getvalue(), f"{page.name}:{after.line}")
        for line, command, said in sessions(block) if block.kind == "console" else ():
            if command not in NOT_RUN and not SET_UP.fullmatch(command):
                printed_there = run_command(command, tmp_path, in_process=name != "README.md")
                if any(text.strip() for text in said):
                    assert_printed(said, printed_there, f"{page.name}:{line}")


def test_pages_with_needs_exist() -> None:
    assert {*DATA, *PACKAGES} <= set(NAMES)


def test_every_command_that_does_not_run_is_on_a_page() -> None:
    shown = {
        command
        for page in PAGES
        for block in read_blocks(page)
        if block.kind == "console"
        for _, command, _ in sessions(block)
    }
    assert set(NOT_RUN) <= shown, "remove the commands that no page shows"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_named_in_a_sentence_exist(page: Path) -> None:
    for found in re.findall(r"`((?:dmtrl(?:-lab)?|python -m dmtrl[\w.]*)(?: [^`]*)?)`", prose(page)):
        words = found.split()
        if words[0] == "python":
            module = importlib.util.find_spec(words[2])
            assert module, f"there is no module {words[2]}"
            assert "__main__" in Path(str(module.origin)).read_text(encoding="utf-8"), f"{found} does nothing"
        elif len(words) > 1:
            group = lab if words[0] == "dmtrl-lab" else main
            command = group if words[1][0] == "-" else group.get_command(click.Context(group), words[1])
            assert command, f"there is no command {words[0]} {words[1]!r}"
            if isinstance(command, click.Group) and len(words) > 2 and words[2].isalpha():
                command = command.get_command(click.Context(command), words[2])
                assert command, f"there is no command {found!r}"
            options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            unknown = {word for word in words[1:] if word.startswith("-")} - options - {"--help"}
            assert not unknown, f"{words[0]} {words[1]} has no option {unknown}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue  # out into the world, which the tests do not visit
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}: there is no such heading"
    for path in re.findall(r"`((?:docs|lab|src|tests)/[\w./]+)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}, which does not exist"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_pages_install_from_a_clone(page: Path) -> None:
    """There is no release yet: an index has no dmtrl."""
    assert not re.search(r"pip install [^`\n]*(?<!/)\bdmtrl\b(?!/)", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_text_of_a_page_is_wrapped(page: Path) -> None:
    """Tables, code and formulas may be wider."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.S)
    assert [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")] == []


def test_the_index_links_every_page() -> None:
    linked = {(INDEX.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)\)", prose(INDEX))}
    assert {page for page in PAGES if page != INDEX} <= linked


def remarks(file: Path) -> Iterator[str]:
    """Comments, and strings in three quotes."""
    with tokenize.open(file) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string):
                yield token.string


def test_equations_and_sections_cited_in_the_code_exist() -> None:
    text = (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
    numbers = set(re.findall(r"\\tag\{([\d.]+)\}", text)) | set(re.findall(r" {4,}\(([\d.]+)\)$", text, re.MULTILINE))
    sections = set(re.findall(r"^## (\d+)\. ", text, re.MULTILINE))
    assert {"1", "25.1", "31"} <= numbers
    assert "11" in sections
    cited = 0
    for file in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "lab").rglob("*.py")]):
        for remark in remarks(file):
            for number in re.findall(r"(?<![\w.*\])])\((\d{1,2}(?:\.\d)?)\)", remark):
                cited += 1
                assert number in numbers, f"{file.name} cites ({number}), which is not in docs/math.md: {remark[:200]}"
            for number in re.findall(r"math\.md,? sections? (\d+)", remark):
                assert number in sections, f"{file.name} cites section {number} of docs/math.md"
    assert cited > 20
