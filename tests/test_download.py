"""Downloads, from a real server on this machine: what arrives is the published data, or a sentence and nothing else."""

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scipy.io import loadmat, savemat

from conftest import SharedData
from dmtrl.datasets import convert, download, load_mds, load_mnist_tasks, load_school
from dmtrl.datasets.sources import MDS_DOMAINS, SOURCES, mds_file, mds_parts

Arrays = dict[str, np.ndarray]


class Home:
    """A server on 127.0.0.1 with files, a count of what was asked for, and a way to answer (by default properly)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.answer: Callable[[http.server.BaseHTTPRequestHandler, bytes], None] = send
        self.over = threading.Event()
        home = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                home.asked[name] += 1
                if name in home.files:
                    home.answer(self, home.files[name])
                else:
                    self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a client that hangs up in the middle is part of these tests

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data/"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def send(request: http.server.BaseHTTPRequestHandler, data: bytes, stated: int | None = None) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(data) if stated is None else stated))
    request.end_headers()
    request.wfile.write(data)


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no other folder, and no proxy between us and 127.0.0.1."""
    for name in ("DMTRL_DATA", "DMTRL_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("DMTRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def school_files(arrays: Arrays) -> dict[str, bytes]:
    """The published layout: one column a pupil, numbers of rows from one, and where each task starts."""

    def mat(**variables: np.ndarray) -> bytes:
        savemat(file := io.BytesIO(), variables, do_compression=True)
        return file.getvalue()

    def starts(rows: np.ndarray) -> np.ndarray:
        return np.flatnonzero(np.diff(arrays["task"][rows], prepend=-1))[None, :] + 1

    y = arrays["y"].astype(np.uint8)[:, None]
    files = {"school_b.mat": mat(x=arrays["X"].T.astype(float), y=y, task_indexes=starts(np.arange(len(y))))}
    for k in range(1, 11):
        train, test = arrays[f"train_{k}"], arrays[f"test_{k}"]
        files[f"school_{k}_indexes.mat"] = mat(
            tr=train[None, :].astype(np.uint16) + np.uint16(1),
            tst=test[None, :].astype(np.uint16) + np.uint16(1),
            tr_indexes=starts(train),
            tst_indexes=starts(test),
        )
    return files


def digest(arrays: Arrays) -> str:
    """As the docstring of arrays_digest states it, written a second time."""
    stream = b""
    for name, array in sorted(arrays.items()):
        stream += f"{name} {array.dtype.str} {'x'.join(str(n) for n in array.shape)}\n".encode()
        stream += np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(stream).hexdigest()


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


def live_at(monkeypatch: pytest.MonkeyPatch, name: str, *homes: str, **changes: str) -> None:
    monkeypatch.setitem(SOURCES, name, dataclasses.replace(SOURCES[name], homes=homes, **changes))


def nobody() -> str:
    """The address of a port that nobody listens on."""
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


def same(found: Path, arrays: Arrays) -> None:
    with np.load(found, allow_pickle=False) as archive:
        assert set(archive.files) == set(arrays)
        for name, array in arrays.items():
            assert archive[name].dtype == array.dtype
            assert np.array_equal(archive[name], array), name


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


def test_homes_are_tried_in_turn(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Home()
    try:
        live_at(monkeypatch, "school.npz", nobody(), empty.url, home.url)
        load_school()
        assert empty.asked == {"school_b.mat": 1}
        same(cache / "school.npz", small_school)
    finally:
        empty.close()


def test_server_down_and_file_not_found(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    del home.files["school_7_indexes.mat"]
    away = nobody()
    live_at(monkeypatch, "school.npz", away, home.url)
    sentence = refusal(cache)
    assert f"{away[7:-1]}: school_b.mat could not be asked for" in sentence
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
    assert f"school_b.mat was cut short ({whole // 2} of {whole} bytes came)" in refusal(cache)


def test_a_connection_that_breaks_once_is_tried_again(home: Home, cache: Path, small_school: Arrays) -> None:
    def break_once(request: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        first = home.asked[request.path.rpartition("/")[2]] == 1
        send(request, data[:100] if first else data, stated=len(data))

    home.answer = break_once
    load_school()
    assert home.asked == dict.fromkeys(home.files, 2)
    same(cache / "school.npz", small_school)


def test_silence_and_a_trickle_are_given_up(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say_nothing(request: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        send(request, data[:10], stated=len(data))
        home.over.wait()

    def trickle(request: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        send(request, b"", stated=1_000_000)
        while not home.over.is_set():
            request.wfile.write(b".")
            time.sleep(0.02)

    monkeypatch.setattr(download, "SILENCE_SECONDS", 0.2)
    home.answer = say_nothing
    assert "school_b.mat stopped coming for 0.2 seconds" in refusal(cache)
    monkeypatch.setattr(download, "SILENCE_SECONDS", 30.0)
    monkeypatch.setattr(download, "FILE_SECONDS", 0.2)
    home.answer = trickle
    assert "school_b.mat took longer than 0.2 seconds" in refusal(cache)


def test_a_cache_that_cannot_be_written_to(
    home: Home, cache: Path, small_school: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(OSError, match="set DMTRL_CACHE to a folder that can be written to"):
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
from dmtrl.datasets.sources import SOURCES
home, digest, stop = sys.argv[1:]
SOURCES["school.npz"] = dataclasses.replace(SOURCES["school.npz"], homes=(home,), arrays_sha256=digest)
if stop == "before the rename":
    def fsync(_):
        print("written", flush=True)
        time.sleep(600)
    os.fsync = fsync
load_school()
"""


def child(home: Home, arrays: Arrays, stop: str = "never", **streams: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, home.url, digest(arrays), stop], **streams)


def test_processes_do_not_disturb_each_other(home: Home, cache: Path, small_school: Arrays) -> None:
    children = [child(home, small_school, stderr=subprocess.PIPE) for _ in range(2)]
    for process in children:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        assert errors == b"", "quiet in a pipe"
    assert [path.name for path in cache.iterdir()] == ["school.npz"]
    same(cache / "school.npz", small_school)


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


@pytest.mark.data
def test_school_as_published(home: Home, cache: Path, shared_data: SharedData, monkeypatch: pytest.MonkeyPatch) -> None:
    with np.load(shared_data / "school.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    home.files = school_files(arrays)
    live_at(monkeypatch, "school.npz", home.url)
    load_school()
    same(cache / "school.npz", arrays)


@pytest.mark.data
def test_mnist_as_published(home: Home, cache: Path, shared_data: SharedData, monkeypatch: pytest.MonkeyPatch) -> None:
    with np.load(shared_data / "mnist.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    for number, part in enumerate(("train", "t10k")):
        X, y = (arrays[name][arrays["split"] == number] for name in "Xy")
        n = len(y).to_bytes(4, "big")
        images = bytes([0, 0, 8, 3]) + n + bytes([0, 0, 0, 28, 0, 0, 0, 28]) + X.tobytes()
        home.files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(images, 1)
        home.files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(bytes([0, 0, 8, 1]) + n + y.tobytes(), 1)
    assert set(home.files) == set(SOURCES["mnist.npz"].files)
    whole = home.files["train-labels-idx1-ubyte.gz"]
    live_at(monkeypatch, "mnist.npz", home.url)
    for damaged, sentence in (
        (whole[:-100], "train-labels-idx1-ubyte.gz is damaged"),
        (gzip.compress(gzip.decompress(whole)[:-1] + b"\0"), "train-labels-idx1-ubyte.gz has the wrong checksum"),
    ):
        home.files["train-labels-idx1-ubyte.gz"] = damaged
        with pytest.raises(FileNotFoundError, match=sentence):
            load_mnist_tasks(max_positives=10)
    home.files["train-labels-idx1-ubyte.gz"] = whole
    assert load_mnist_tasks(max_positives=10, digits=[4]).train.X.shape == (20, 784)
    same(cache / "mnist.npz", arrays)


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\x08", b"\0\0\x0d\x01\0\0\0\0", b"\0\0\x08\x01\0\0\0\x02a", b"\0\0\x08\x02\0"]
)
def test_what_is_no_idx_file(data: bytes) -> None:
    with pytest.raises(ValueError, match="idx file"):
        convert.idx_array(data)


def test_lines_and_terms_of_reviews() -> None:
    lines = "good toy\t1\nno label\n\nbad , toy\t-1\r\nthree\tparts\t1\nodd label\t0\nline\u2028break\t1".encode()
    assert convert.labelled_texts(lines) == [("good toy", 1), ("bad , toy", -1), ("line\u2028break", 1)]
    assert convert.terms("bad , don't  buy 1/2 -- !") == ["bad", "don't", "buy", "don't buy", "1/2", "buy 1/2"]
    assert convert.terms("") == convert.terms(" ... ") == []


def review_files(rows: list[tuple[str, str, int, int, int]]) -> dict[str, bytes]:
    """Text files from (domain, text, label, origin, part)."""
    lines: dict[str, list[str]] = {name: [] for name in SOURCES["mds.npz"].files}
    for domain, text, label, origin, part in rows:
        lines[mds_file(domain, (4, 2)[origin], ("train", "dev", "test")[part])].append(f"{text}\t{label}\n")
    return {name: "".join(content).encode() for name, content in lines.items()}


def made_up_reviews() -> list[tuple[str, str, int, int, int]]:
    """As many different reviews in each domain as there should be, seven words each."""
    rng = np.random.default_rng(1)
    rows = []
    for domain, (n, positive, extra) in MDS_DOMAINS.items():
        parts = [("train", "dev", "test").index(part) for part in mds_parts(domain)]
        words = np.minimum(rng.zipf(1.3, (n, 4)), 3000)
        for k, (one, two, three, four) in enumerate(words):
            label, origin = (1, 0) if k < positive else (-1, int(k >= n - extra))
            # the last three words make the text, and its counts, differ from all others
            text = f"w{one} w{two} . w{three} w{four} {domain} n{k // 97} of{k % 97}"
            rows.append((domain, text, label, origin, parts[k % len(parts)]))
    return rows


def test_reviews_are_counted_and_drawn(home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = made_up_reviews()
    again = [("baby", rows[0][1], 1, 1, 1), *[(d, text, 1, 1, 2) for d, text, *_ in rows[:50]], rows[5]]
    home.files = review_files([*rows, *again])  # texts that stand there twice, and ones of two stars and more
    live_at(monkeypatch, "mds.npz", home.url)
    tasks = load_mds(domains=["books", "baby"], rows="all", tfidf=False)
    assert list(tasks.train.names) == ["baby", "books"]
    with np.load(cache / "mds.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    texts = [text for _, text, *_ in sorted(rows, key=lambda row: (row[0], row[3], row[4]))]
    totals = Counter(term for text in texts for term in convert.terms(text))
    best = sorted(totals, key=lambda term: (-totals[term], term))[:10_000]
    assert list(arrays["vocab"]) == best
    for row in (0, 777, len(texts) - 1):
        a, b = arrays["indptr"][row : row + 2]
        found = dict(zip(arrays["vocab"][arrays["indices"][a:b]], arrays["data"][a:b], strict=True))
        assert found == {term: n for term, n in Counter(convert.terms(texts[row])).items() if term in set(best)}
    kinds = Counter(zip(*(arrays[name].tolist() for name in ("task", "y", "origin", "balanced")), strict=True))
    folds = Counter(zip(*(arrays[name].tolist() for name in ("task", "y", "origin", "balanced", "fold")), strict=True))
    for number, (n, positive, extra) in enumerate(MDS_DOMAINS.values()):
        mine = arrays["task"] == number
        assert (mine.sum(), (arrays["y"][mine] == 1).sum(), arrays["origin"][mine].sum()) == (n, positive, extra)
        chosen = arrays["y"][mine & arrays["balanced"]]
        assert len(chosen) == 2 * min(positive, n - positive)
        assert chosen.sum() == 0
    for kind, n in kinds.items():
        assert all(n // 10 <= folds[(*kind, fold)] <= -(-n // 10) for fold in range(10)), "folds share every kind alike"


def test_reviews_that_are_missing_are_noticed(home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.files = review_files(made_up_reviews())
    home.files["dvd.t4.dev"] = b""
    live_at(monkeypatch, "mds.npz", home.url)
    with pytest.raises(FileNotFoundError, match=r"dvd has \d+ reviews .* where 1809 \(1433, 133\) are known"):
        load_mds()
    assert not list(cache.glob("*"))


def text_with(counts: dict[str, int]) -> str:
    """A text with exactly these counts of words and of pairs of neighbours: a round trip through all of them.

    A full stop parts the words that no counted pair joins. Every word is entered and left as often as it is counted, so
    the round trip exists (Euler), and is found by going on until stuck and then mending in detours (Hierholzer).
    """
    ways: dict[str, list[str]] = {".": []}
    entered, left = Counter[str](), Counter[str]()
    for term, n in counts.items():
        first, _, second = term.partition(" ")
        if second:
            ways.setdefault(first, []).extend([second] * n)
            left[first] += n
            entered[second] += n
    for term, n in counts.items():
        if " " not in term:
            ways["."] += [term] * (n - entered[term])
            ways.setdefault(term, []).extend(["."] * (n - left[term]))
    stack, path = ["."], []
    while stack:
        if onward := ways[stack[-1]]:
            stack.append(onward.pop())
        else:
            path.append(stack.pop())
    return " ".join(reversed(path))


@pytest.mark.data
def test_reviews_with_the_known_counts_give_the_known_matrix(
    shared_data: SharedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that have the counts of the real reviews are converted back to the same counts, labels and order."""
    domains = {name: MDS_DOMAINS[name] for name in ("automotive", "beauty", "cell_phones_service", "music", "software")}
    monkeypatch.setattr(convert, "MDS_DOMAINS", domains)
    with np.load(shared_data / "mds.npz", allow_pickle=False) as archive:
        known = dict(archive)
    names = known["task_names"][known["task"]]
    mine = np.flatnonzero(np.isin(names, list(domains)))
    parts = (known["data"], known["indices"], known["indptr"])
    counts = sparse.csr_matrix(parts, shape=tuple(known["shape"]))[mine]
    rows = []
    for row, one in zip(mine, counts, strict=True):
        text = text_with(dict(zip(known["vocab"][one.indices].tolist(), one.data.tolist(), strict=True)))
        rows.append((str(names[row]), text, *(int(known[name][row]) for name in ("y", "origin", "source_split"))))
    found = convert.mds(review_files(rows))
    for name in ("y", "origin", "source_split"):
        assert np.array_equal(found[name], known[name][mine]), name
    assert np.array_equal(found["task_names"][found["task"]], names[mine])
    assert found["balanced"].sum() == known["balanced"][mine].sum()
    column = {term: k for k, term in enumerate(known["vocab"].tolist())}
    moved = np.array([column[term] for term in found["vocab"].tolist()])[found["indices"]]
    again = sparse.csr_matrix((found["data"], moved, found["indptr"]), shape=counts.shape)
    assert (again != counts).nnz == 0
