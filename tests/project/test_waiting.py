"""Tests wait for facts, through tests/support/waiting.py, and never measure time."""

import ast
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import alive, wait_for, wait_for_event

TESTS = Path(__file__).resolve().parents[1]
CLOCKS = {"monotonic", "perf_counter", "process_time"}


def calls_of_time(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "time":
            yield node  # type: ignore[misc]


def complaints(source: str) -> list[str]:
    """Loops that sleep until something happens, and clocks that are read."""
    tree, found = ast.parse(source), []
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While | ast.For)]
    for call in {call for loop in loops for call in calls_of_time(loop) if call.func.attr == "sleep"}:  # type: ignore[attr-defined]
        found.append(f"line {call.lineno}: a loop that sleeps; use wait_for")
    for call in calls_of_time(tree):
        if call.func.attr in CLOCKS:  # type: ignore[attr-defined]
            found.append(f"line {call.lineno}: a test that measures time fails on a slow machine")
    return found


def test_the_check_sees_what_it_is_for() -> None:
    assert complaints("while not path.exists():\n    time.sleep(0.1)") == ["line 2: a loop that sleeps; use wait_for"]
    assert len(complaints("began = time.perf_counter()\nwork()\nassert time.perf_counter() - began < 1")) == 2
    assert complaints("def answer(message):\n    time.sleep(0.1)\n    return message") == []


@pytest.mark.parametrize("file", sorted(TESTS.rglob("test_*.py")), ids=lambda file: str(file.relative_to(TESTS)))
def test_no_test_depends_on_seconds(file: Path) -> None:
    assert complaints(file.read_text(encoding="utf-8")) == []


def test_a_fact_is_waited_for_and_returned() -> None:
    answers = iter([None, "", "there"])
    assert wait_for(lambda: next(answers), "an answer", every=0.0) == "there"
    with pytest.raises(AssertionError, match=r"waited 0 s for what never comes"):
        wait_for(lambda: False, "what never comes", ceiling=0.0, every=0.0)
    with pytest.raises(AssertionError, match="waited 0 s for the event"):
        wait_for_event(threading.Event(), "the event", ceiling=0.0)


@pytest.mark.subprocess
def test_the_end_of_a_process_ends_the_wait() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with process, pytest.raises(AssertionError, match="the process ended with 3 before that"):
        wait_for(lambda: alive(process) and False, "what this process never does")
