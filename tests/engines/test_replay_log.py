"""The replay log: kept in memory, then on disk, and given up where there is no room for it."""

import errno
import io
import os
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import Settings
from dmtrl.engines import recovery
from dmtrl.engines.log import IN_MEMORY, ReplayLog
from dmtrl.engines.recovery import RecoveringEngine
from dmtrl.exceptions import WorkerLostError
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, HoldOut, Prepare, Restore, Round, Save, Saved, Score, UseShared
from support.fragile import Fragile
from support.problems import random_problem
from support.solving import solve_data

OK = Message("answer")
HOLD_OUT = HoldOut(fold=0, folds=3, seed=0)
FRESH = Prepare(max_passes=1, total_weight=np.ones(1), steps=np.zeros(1, np.int64))
KEPT = replace(FRESH, keep=True)
SMALL = Round(round=0, target=0.0, w=np.ones((1, 1)), step=np.ones(1))
LARGE = replace(SMALL, w=np.ones((1, 100)))  # about 1000 bytes


def _add(log: ReplayLog, *requests: Any) -> None:
    for request in requests:
        log.add(encode(request), encode(Saved(file="file")) if isinstance(request, Save) else OK)


def _kept(log: ReplayLog) -> list[str]:
    return [message.name for batch in log.batches() for message in batch]


def _restored_from(log: ReplayLog) -> str:
    first = decode(next(log.batches())[0])
    assert isinstance(first, Restore)
    return first.source


def test_a_log_drops_what_a_replacement_does_not_need() -> None:
    log = ReplayLog()
    _add(log, Describe(), HOLD_OUT, FRESH, SMALL, Score(w=np.ones((1, 1))), KEPT)
    assert _kept(log) == ["hold_out", "prepare", "round", "prepare"]
    _add(log, FRESH)
    assert _kept(log) == ["hold_out", "prepare"]
    _add(log, UseShared(shared=np.ones((1, 2))), UseShared(shared=np.zeros((1, 2))), FRESH)
    assert _kept(log) == ["hold_out", "use_shared", "prepare"]
    assert not decode([message for batch in log.batches() for message in batch][1]).shared.any()
    _add(log, UseShared(), FRESH)
    _add(log, SMALL)
    log.add(encode(Save(to="folder")), encode(Saved(error="the disk is full")))
    assert _kept(log) == ["hold_out", "use_shared", "prepare", "round"]
    _add(log, Save(to="folder", last="folder"), SMALL)
    assert _kept(log) == ["restore", "round"]
    assert _restored_from(log) == "folder"
    _add(log, Restore(source="elsewhere"))
    assert _kept(log) == ["restore"]
    _add(log, FRESH)  # the restored folder may be deleted from here on
    assert _kept(log) == ["hold_out", "use_shared", "prepare"]
    log.close()


def test_a_later_save_counts_only_once_the_next_one_confirms_it() -> None:
    log = ReplayLog()
    _add(log, FRESH, SMALL, Save(to="first", last="first"), SMALL, Save(to="second", last="first"), SMALL)
    assert _kept(log) == ["restore", "round", "round"], "another worker may not have written its second file"
    assert _restored_from(log) == "first"
    _add(log, Save(to="third", last="second"), SMALL)
    assert _kept(log) == ["restore", "round", "round"]
    assert _restored_from(log) == "second"
    log.close()


def test_a_first_save_counts_only_once_the_next_one_confirms_it() -> None:
    with closing(ReplayLog()) as log:
        _add(log, FRESH, SMALL, Save(to="first", last=""), SMALL)
        assert _kept(log) == ["prepare", "round", "round"]
        _add(log, Save(to="second", last="first"))
        assert _kept(log) == ["restore", "round"]


def test_a_save_is_confirmed_before_the_next_one_is_posted() -> None:
    """A worker that writes the next one removes older files, and may be lost before it answers."""
    with closing(ReplayLog()) as log:
        _add(log, FRESH, Save(to="first"), SMALL, Save(to="second", last="first"), SMALL, SMALL)
        assert _restored_from(log) == "first"
        third = encode(Save(to="third", last="second"))
        for _ in range(2):  # it is posted again to a replacement
            log.before(third)
            assert _kept(log) == ["restore", "round", "round"]
            assert _restored_from(log) == "second"
        log.add(third, encode(Saved(error="the disk is full")))
        _add(log, SMALL)
        log.before(encode(Save(to="third", last="second")))
        assert _kept(log) == ["restore", "round", "round", "round"]
        assert _restored_from(log) == "second"


def test_a_long_log_is_on_disk_and_replayed_in_batches() -> None:
    log = ReplayLog(1 << 20)
    for number in range(20):
        _add(log, replace(SMALL, round=number, w=np.full((1, 300_000), float(number))))
    assert log._file._rolled  # type: ignore[attr-defined]
    batches = list(log.batches())
    assert len(batches) > 3
    replayed = [decode(message) for batch in batches for message in batch]
    assert [request.round for request in replayed] == list(range(20))
    assert all((request.w == number).all() for number, request in enumerate(replayed))
    log.close()


def test_all_workers_share_the_memory_for_their_logs() -> None:
    data = random_problem(m=4)
    with RecoveringEngine(Fragile(data, "squared", 4, {})) as engine:
        assert [worker.log._in_memory for worker in engine._workers] == [IN_MEMORY // 4] * 4


class SmallDisk(io.FileIO):
    """A file on a disk with room for so many bytes."""

    room = 0

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no room for temporary files; other files can be written."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: io.BufferedRandom(SmallDisk(tmp_path / "file", "w+b")))


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_detected_when_a_message_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 8 + encode(LARGE).nbytes  # with its length
    monkeypatch.setattr(SmallDisk, "room", 3 * size + size // 2)
    log = ReplayLog(1000)
    for full in (False, False, False, True):
        _add(log, LARGE)
        assert bool(log.missing) == full
    log.close()


@pytest.mark.usefixtures("full_disk")
def test_a_log_without_room_is_given_up_until_a_run_begins() -> None:
    log = ReplayLog(2000)
    _add(log, FRESH, LARGE)
    assert not log.missing
    _add(log, LARGE)
    assert "No space left on device" in log.missing
    _add(log, SMALL)
    assert _kept(log) == [], "a replacement cannot start in the middle"
    _add(log, FRESH)
    assert not log.missing
    assert _kept(log) == ["prepare"]
    log.close()


@pytest.mark.usefixtures("full_disk")
def test_a_checkpoint_completes_a_log_that_was_given_up() -> None:
    """As soon as the next save confirms that all workers have written theirs."""
    log = ReplayLog(1500)
    _add(log, LARGE, LARGE, Save(to="first", last="before"), SMALL)
    assert log.missing
    _add(log, Save(to="second", last="first"))
    assert not log.missing
    assert _kept(log) == ["restore", "round"]
    assert _restored_from(log) == "first"
    log.close()


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_ends_a_run_only_if_a_worker_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery, "IN_MEMORY", 10)
    data, options = random_problem("squared", m=4), Settings(tol=1e-5)
    common: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1, "settings": options}
    plain = solve_data(data, workers=2, **common)

    def run(faults: dict[int, str]) -> Any:
        with RecoveringEngine(Fragile(data, "squared", 2, faults)) as engine:
            return solve_data(data, engine=engine, **common)

    assert run({}).W.tobytes() == plain.W.tobytes()
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 1, "one warning per engine"
    assert "the messages sent to worker 0 (tasks 0, 1) could not be kept ([Errno 28]" in logged[0]
    words = r"worker 1 \(tasks 2, 3\) was lost \(before\) and cannot be replaced: .* No space left on device"
    with pytest.raises(WorkerLostError, match=words):
        run({12: "before"})
