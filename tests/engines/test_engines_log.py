"""What a worker was told: kept in memory, then on disk, and given up where there is no room for it."""

import errno
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import Settings, solve
from dmtrl.engines import recovery
from dmtrl.engines.log import IN_MEMORY, Log
from dmtrl.engines.recovery import RecoveringEngine
from dmtrl.exceptions import WorkerLostError
from dmtrl.protocol.message import Message
from dmtrl.relationship import Learned
from dmtrl.solver.coordinator import Coordinator
from support.fragile import Fragile
from support.problems import random_problem

DONE, ROUND = Message("done"), Message("round", {}, {"w": np.ones(100)})


def _told(log: Log) -> list[str]:
    return [message.name for batch in log.batches() for message in batch]


def test_a_log_forgets_what_does_not_matter_any_more() -> None:
    log, done = Log(), Message("done")
    fresh, kept = Message("prepare", {"keep": False}), Message("prepare", {"keep": True})
    for message in (Message("describe"), Message("hold_out"), fresh, Message("round"), Message("score"), kept):
        log.add(message, done)
    assert _told(log) == ["hold_out", "prepare", "round", "prepare"]
    log.add(fresh, done)
    assert _told(log) == ["hold_out", "prepare"]
    log.add(Message("round"), done)
    log.add(Message("save", {"to": "there"}), Message("saved", {"error": "the disk is full"}))
    assert _told(log) == ["hold_out", "prepare", "round"]
    log.add(Message("save", {"to": "there"}), Message("saved"))
    log.add(Message("round"), done)
    assert _told(log) == ["restore", "round"]
    assert next(log.batches())[0].scalars == {"from": "there"}
    log.add(Message("restore", {"from": "elsewhere"}), done)
    assert _told(log) == ["restore"]
    log.add(fresh, done)  # what was restored may be deleted from here on
    assert _told(log) == ["hold_out", "prepare"]
    log.close()


def test_a_long_log_lies_on_disk_and_is_told_piece_by_piece() -> None:
    log = Log(1 << 20)
    for number in range(20):
        log.add(Message("round", {"round": number}, {"w": np.full(300_000, float(number))}), Message("improved"))
    assert log._file._rolled  # type: ignore[attr-defined]
    batches = list(log.batches())
    assert len(batches) > 3
    told = [message for batch in batches for message in batch]
    assert [message.scalars["round"] for message in told] == list(range(20))
    assert all((message.arrays["w"] == number).all() for number, message in enumerate(told))
    log.close()


def test_all_workers_share_the_memory_for_what_they_were_told() -> None:
    data = random_problem(m=4)
    with RecoveringEngine(Fragile(data, "squared", 4, {})) as engine:
        assert [worker.log._in_memory for worker in engine._workers] == [IN_MEMORY // 4] * 4


class Small(io.FileIO):
    """A file on a disk with room for so many bytes."""

    room = 0

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no room for temporary files, but for nothing else."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: io.BufferedRandom(Small(tmp_path / "file", "w+b")))


@pytest.mark.usefixtures("full_disk")
def test_a_disk_that_becomes_full_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small, "room", 3000)
    log = Log(1000)
    for full in (False, False, False, True):
        log.add(ROUND, DONE)
        assert bool(log.missing) == full
    log.close()


@pytest.mark.usefixtures("full_disk")
def test_a_log_without_room_is_given_up_until_something_begins_anew() -> None:
    log = Log(1000)
    log.add(Message("prepare"), DONE)
    log.add(ROUND, DONE)
    assert not log.missing
    log.add(ROUND, DONE)
    assert "No space left on device" in log.missing
    log.add(Message("round"), DONE)
    assert _told(log) == [], "nobody can begin in the middle"
    log.add(Message("prepare"), DONE)
    assert not log.missing
    assert _told(log) == ["prepare"]
    log.close()


@pytest.mark.usefixtures("full_disk")
def test_a_checkpoint_makes_a_log_whole_that_was_given_up() -> None:
    """As soon as it is known that all workers have made theirs."""
    log = Log(1000)
    for _ in range(2):
        log.add(ROUND, DONE)
    log.add(Message("save", {"to": "first", "last": ""}), DONE)
    log.add(Message("round"), DONE)
    assert log.missing
    log.add(Message("save", {"to": "second", "last": "first"}), DONE)
    assert not log.missing
    assert _told(log) == ["restore", "round"]
    assert next(log.batches())[0].scalars == {"from": "first"}
    log.close()


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_ends_no_run_in_which_nobody_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery, "IN_MEMORY", 10)
    data, options = random_problem("squared", m=4), Settings(tol=1e-5)
    plain = solve(data, loss="squared", reg_lambda=0.1, settings=options, workers=2)

    def run(faults: dict[int, str]) -> Any:
        with RecoveringEngine(Fragile(data, "squared", 2, faults)) as engine:
            return Coordinator(engine, data.m, Learned(), 0.1, options).run()

    assert run({}).W.tobytes() == plain.W.tobytes()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1, "once, and not for every worker"
    assert "what worker 0 (tasks 0, 1) was told could not be kept ([Errno 28]" in told[0]
    words = r"worker 1 \(tasks 2, 3\) was lost \(before\) and cannot be brought back: .* No space left on device"
    with pytest.raises(WorkerLostError, match=words):
        run({12: "before"})
