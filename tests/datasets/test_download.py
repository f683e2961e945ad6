"""Downloads, from a real server on this machine: what arrives is the published data, or a sentence and nothing else."""

import contextlib
import http.server
import io
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from dmtrl.datasets import convert, download, load_school
from support.homes import Arrays, Home, digest, live_at, same, school_files, send
from support.waiting import be_slow


@pytest.fixture
def small_school(home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Arrays:
    """A School of three schools and 30 pupils at `home`, and its arrays."""
    rng = np.random.default_rng(0)
    arrays = {
        "X": rng.integers(0, 60, (30, 28)).astype(np.float32),
        "y": rng.integers(1, 71, 30).astype(np.float32),
        "task": np.repeat(np.arange(3, dtype=np.int32), [8, 12, 10]),
        "task_names": np.array(["school_1", "school_2", "school_3"]),
        "feature_names": np.array(convert.SCHOOL_FEATURES),
    }
    for k in range(1, 11):
        order = np.concatenate([start + rng.permutation(n) for start, n in ((0, 8), (8, 12), (20, 10))])
        in_test = np.isin(np.arange(30), [0, 1, 10, 11, 12, 22, 23])
        arrays[f"train_{k}"] = order[~in_test].astype(np.int32)
        arrays[f"test_{k}"] = order[in_test].astype(np.int32)
    home.files = school_files(arrays)
    live_at(monkeypatch, "school.npz", home.url, arrays_sha256=digest(arrays))
    return arrays


def unused_address() -> str:
    """The address of a port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


def refusal(cache: Path) -> str:
    """load_school refuses with one sentence that says what to do, and leaves nothing."""
    with pytest.raises(FileNotFoundError) as caught:
        load_school()
    sentence = str(caught.value)
    assert "\n" not in sentence
    for part in ("school.npz", "dmtrl.datasets.load_school()", str(cache), "DMTRL_DATA"):
        assert part in sentence
    assert not list(cache.glob("*")), "nothing is left"
    return sentence


def test_a_missing_file_is_fetched_once(home: Home, cache: Path, small_school: Arrays) -> None:
    first = load_school()
    assert np.array_equal(first.X, small_school["X"])
    same(cache / "school.npz", small_school)
    assert [path.name for path in cache.iterdir()] == ["school.npz"]
    assert home.asked == dict.fromkeys(home.files, 1)
    home.close()
    assert np.array_equal(load_school().y, first.y), "the second call needs no network"


def test_a_file_in_a_folder_is_never_fetched(
    home: Home, cache: Path, small_school: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "school.npz", **small_school)
    load_school(tmp_path)
    monkeypatch.setenv("DMTRL_DATA", str(tmp_path))
    load_school()
    assert not home.asked
    assert not cache.exists()


def test_offline_is_obeyed(home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMTRL_OFFLINE", "1")
    assert "DMTRL_OFFLINE forbids it" in refusal(cache)
    assert not home.asked
    monkeypatch.setenv("DMTRL_OFFLINE", "0")
    load_school()


def test_mirrors_are_tried_in_turn(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Home()
    try:
        live_at(monkeypatch, "school.npz", unused_address(), empty.url, home.url)
        load_school()
        assert empty.asked == {"school_b.mat": 1}
        same(cache / "school.npz", small_school)
    finally:
        empty.close()


def test_server_down_and_file_not_found(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    del home.files["school_7_indexes.mat"]
    away = unused_address()
    live_at(monkeypatch, "school.npz", away, home.url)
    sentence = refusal(cache)
    assert f"{away[7:-1]}: school_b.mat could not be requested" in sentence
    assert "school_7_indexes.mat was refused (HTTP 404 Not Found)" in sentence


def changed(data: bytes) -> bytes:
    """The same .mat file, but for one pupil's score."""
    whole = {name: value for name, value in loadmat(io.BytesIO(data)).items() if not name.startswith("__")}
    whole["y"][3] ^= 1
    savemat(file := io.BytesIO(), whole)
    return file.getvalue()


def test_one_changed_value_is_noticed(home: Home, cache: Path, small_school: Arrays) -> None:
    home.files["school_b.mat"] = changed(home.files["school_b.mat"])
    assert "its files have the wrong checksum" in refusal(cache)


@pytest.mark.parametrize("page", [b"<html>Please log in</html>", b"", b"MATLAB 5.0 MAT-file" + bytes(200)])
def test_a_foreign_file_is_noticed(home: Home, cache: Path, small_school: Arrays, page: bytes) -> None:
    home.files["school_3_indexes.mat"] = page
    assert "its files are not the published ones" in refusal(cache)


def test_an_answer_cut_short_is_noticed(home: Home, cache: Path, small_school: Arrays) -> None:
    home.answer = lambda request, data: send(request, data[: len(data) // 2], stated=len(data))
    whole = len(home.files["school_b.mat"])
    assert f"school_b.mat is truncated ({whole // 2} of {whole} bytes received)" in refusal(cache)


def test_a_connection_that_breaks_once_is_tried_again(home: Home, cache: Path, small_school: Arrays) -> None:
    def break_once(request: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        first = home.asked[request.path.rpartition("/")[2]] == 1
        send(request, data[:100] if first else data, stated=len(data))

    home.answer = break_once
    load_school()
    assert home.asked == dict.fromkeys(home.files, 2)
    same(cache / "school.npz", small_school)


def test_a_silent_and_a_slow_mirror_time_out(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say_nothing(request: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        send(request, data[:10], stated=len(data))
        home.over.wait()

    def trickle(request: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        send(request, b"", stated=1_000_000)
        while not home.over.is_set():
            request.wfile.write(b".")
            be_slow(0.02)

    monkeypatch.setattr(download, "SILENCE_SECONDS", 0.2)
    home.answer = say_nothing
    assert "school_b.mat timed out: no data for 0.2 seconds" in refusal(cache)
    monkeypatch.setattr(download, "SILENCE_SECONDS", 30.0)
    monkeypatch.setattr(download, "FILE_SECONDS", 0.2)
    home.answer = trickle
    assert "school_b.mat timed out: it took longer than 0.2 seconds" in refusal(cache)


def test_a_cache_that_cannot_be_written_to(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(OSError, match="set DMTRL_CACHE to a writable folder"):
        load_school()
    assert not home.asked, "told before anything is fetched"


def test_threads_share_one_download(home: Home, cache: Path, small_school: Arrays) -> None:
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(load_school().X)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(np.array_equal(X, small_school["X"]) for X in found)
    assert home.asked == dict.fromkeys(home.files, 1)


CHILD = """
import dataclasses, os, sys, time
from dmtrl.datasets import load_school
from dmtrl.datasets.registry import REGISTRY
home, digest, stop = sys.argv[1:]
REGISTRY["school.npz"] = dataclasses.replace(REGISTRY["school.npz"], mirrors=(home,), arrays_sha256=digest)
if stop == "before the rename":
    def fsync(_):
        print("written", flush=True)
        time.sleep(600)
    os.fsync = fsync
load_school()
"""


def child(home: Home, arrays: Arrays, stop: str = "never", **streams: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, home.url, digest(arrays), stop], **streams)


@pytest.mark.subprocess
def test_processes_do_not_disturb_each_other(home: Home, cache: Path, small_school: Arrays) -> None:
    children = [child(home, small_school, stderr=subprocess.PIPE) for _ in range(2)]
    for process in children:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        assert errors == b"", "quiet in a pipe"
    assert [path.name for path in cache.iterdir()] == ["school.npz"]
    same(cache / "school.npz", small_school)


@pytest.mark.subprocess
def test_a_kill_leaves_nothing_under_the_final_name(home: Home, cache: Path, small_school: Arrays) -> None:
    with child(home, small_school, stop="before the rename", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.kill()
    assert not (cache / "school.npz").exists()
    load_school()
    same(cache / "school.npz", small_school)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_bar_is_shown_on_a_terminal(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pty

    shown = bytearray()

    def watch(screen: int) -> None:
        with contextlib.suppress(OSError):  # how Linux says that the other end was closed
            while block := os.read(screen, 4096):
                shown.extend(block)
        os.close(screen)

    screen, keyboard = pty.openpty()
    watcher = threading.Thread(target=watch, args=(screen,))
    watcher.start()
    with open(keyboard, "w") as terminal, monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stderr", terminal)
        load_school()
    watcher.join()
    assert b"school_10_indexes.mat (11 of 11)" in shown
