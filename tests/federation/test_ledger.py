"""The ledger: what it records, and what breaks its chain."""

import hashlib
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl.federation.site.ledger import Ledger, entries, verify
from dmtrl.protocol.message import Message


def message(number: float = 1.0, name: str = "improved") -> Message:
    return Message(name, {"features": 3, "kept": True, "digest": "x"}, {"b": np.full((2, 3), number)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for number in (1.0, 2.0, 3.0, 3.0):
        ledger.record("study", message(number))
    return ledger.path


def test_every_message_is_recorded(path: Path) -> None:
    lines = list(entries(path))
    assert [line.number for line in lines] == [1, 2, 3, 4]
    assert lines[0].shapes == {"b": [2, 3]}
    assert lines[0].numbers == 7
    assert lines[0].bytes == len(message().encode())
    assert lines[0].digest == hashlib.sha256(message().encode()).hexdigest()
    assert [line.repeated for line in lines] == [False, False, False, True]
    assert verify(path) == 4


def test_messages_count_once_also_after_a_restart(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.times("study", "improved") == 3
    assert ledger.times("another", "improved") == 0
    ledger.record("study", message(4.0))
    ledger.record("study", message(1.0))
    ledger.record("study", message(5.0, "scores"))
    assert ledger.times("study", "improved") == 4
    assert ledger.times("study", "scores") == 1
    assert ledger.has_left(message(4.0))
    assert not ledger.has_left(message(9.0))
    assert verify(path) == 7


def test_two_processes_continue_one_chain(path: Path) -> None:
    one, other = Ledger(path), Ledger(path)
    one.record("study", message(7.0))
    other.record("study", message(8.0))
    one.record("study", message(9.0))
    assert verify(path) == 7


def test_a_refusal_is_recorded_with_its_sentence(path: Path) -> None:
    Ledger(path).record_refusal("study", "the policy of this site does not allow it")
    last = list(entries(path))[-1]
    assert (last.name, last.text) == ("refused", "the policy of this site does not allow it")
    assert verify(path) == 5


def test_a_changed_line_is_found(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"numbers":7', '"numbers":6')
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match="line 2 was changed"):
        verify(path)


def test_a_removed_or_moved_line_is_found(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(ValueError, match="line 2 does not follow"):
        verify(path)
    path.write_text("".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(ValueError, match="line 1 does not follow"):
        verify(path)


def test_a_ledger_that_was_cut_short_is_found(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    with pytest.raises(ValueError, match="2 lines instead of 4"):
        verify(path)
    path.with_suffix(".head").unlink()
    with pytest.raises(ValueError, match="is missing"):
        verify(path)


def test_a_line_that_is_not_json_is_found(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"hello\n")
    with pytest.raises(ValueError, match="line 5 is not a line of a ledger"):
        verify(path)


def test_a_line_that_a_crash_cut_short_is_replaced(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:40])
    Ledger(path).record("study", message(6.0))
    assert verify(path) == 5
    assert [line.number for line in entries(path)] == [1, 2, 3, 4, 5]


def rewritten(path: Path, numbers: int) -> None:
    """Change the first line and compute all hashes again, as a forger does."""
    previous, lines = "0" * 64, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        content = json.loads(line)
        content["numbers"], content["previous"] = numbers if number == 1 else content["numbers"], previous
        del content["hash"]
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        previous = content["hash"] = hashlib.sha256(text.encode()).hexdigest()
        lines.append(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    path.write_text("".join(lines))


def test_a_rewritten_chain_is_found_by_the_head(path: Path) -> None:
    rewritten(path, 7)
    assert verify(path) == 4, "the same content gives the same hashes"
    rewritten(path, 1)
    with pytest.raises(ValueError, match=r"line 4 of .* does not have the hash that .*ledger\.head holds"):
        verify(path)
    with pytest.raises(ValueError, match="does not have the hash"):
        Ledger(path)


HEADS = [
    (b"000000000004 " + b"0" * 64 + b"\n", "does not have the hash"),
    (b"000000000002 " + b"0" * 64 + b"\n", "4 lines instead of 2: lines were added"),
    (b"garbage", "does not hold a number of lines and a hash"),
    (b"", "does not hold a number of lines and a hash"),
    (b"\xff" * 78, "does not hold a number of lines and a hash"),
]


@pytest.mark.parametrize(("head", "words"), HEADS)
def test_a_changed_head_is_found(path: Path, head: bytes, words: str) -> None:
    path.with_suffix(".head").write_bytes(head)
    with pytest.raises(ValueError, match=words):
        verify(path)


def test_a_crash_between_the_two_writes_leaves_one_line_more(path: Path) -> None:
    head = path.with_suffix(".head")
    before = head.read_bytes()
    Ledger(path).record("study", message(7.0))
    head.write_bytes(before)
    assert verify(path) == 5
    Ledger(path)
    assert head.read_bytes().startswith(b"000000000005 "), "the next process completes the head"
    head.write_bytes(before)
    Ledger(path).record("study", message(8.0))
    assert verify(path) == 6
    head.write_bytes(before)
    with pytest.raises(ValueError, match="6 lines instead of 4"):
        verify(path)


def test_a_ledger_that_was_removed_is_found(path: Path) -> None:
    path.unlink()
    with pytest.raises(ValueError, match="0 lines instead of 4"):
        verify(path)
    with pytest.raises(ValueError, match="0 lines instead of 4"):
        Ledger(path)


def test_a_ledger_that_is_cut_while_it_is_in_use_gets_no_further_line(path: Path) -> None:
    ledger = Ledger(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(ValueError, match="became shorter"):
        ledger.record("study", message(9.0))


CHANGES: list[dict[str, Any]] = [
    {"unknown": 1}, {"shapes": 5}, {"shapes": {"b": 5}}, {"shapes": {"b": ["x"]}}, {"numbers": "x"}, {"number": True},
    {"bytes": 1.5}, {"text": None}, {"repeated": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_line_with_other_fields_gives_one_sentence(path: Path, change: dict[str, Any]) -> None:
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    path.write_text("\n".join(lines) + "\n")
    for read in (verify, Ledger, lambda path: list(entries(path))):
        with pytest.raises(ValueError, match="line 2 is not a line of a ledger"):
            read(path)


@pytest.mark.parametrize("line", ["[1, 2]", "5", "null", "{}", "[" * 100_000])
def test_a_line_that_is_no_object_gives_one_sentence(path: Path, line: str) -> None:
    path.write_text(line + "\n" + path.read_text())
    for read in (verify, Ledger, lambda path: list(entries(path))):
        with pytest.raises(ValueError, match="line 1 is not a line of a ledger"):
            read(path)


def test_other_bytes_with_the_same_content_are_found(path: Path) -> None:
    path.write_text(path.read_text().replace('"numbers":7', '"numbers": 7', 1))
    with pytest.raises(ValueError, match="line 1 was changed"):
        verify(path)


WRITER = """
import sys
from pathlib import Path
from dmtrl.federation.site.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):
    ledger.record_refusal("study", f"{sys.argv[2]} {number}")
"""


@pytest.mark.subprocess
def test_processes_that_write_at_the_same_time_continue_one_chain(path: Path) -> None:
    pytest.importorskip("fcntl")
    with ExitStack() as stack:
        writers = []
        for name in ("one", "two", "three"):
            words = [sys.executable, "-c", WRITER, str(path), name]
            writers.append(stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)))
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"go\n")
            writer.stdin.flush()
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert verify(path) == 184
