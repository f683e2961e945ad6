"""What the published files become: the same arrays as those that were kept, and counts that are known."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from conftest import SharedData
from dmtrl.datasets import convert, load_mds, load_mnist_tasks, load_school
from dmtrl.datasets.registry import MDS_DOMAINS, REGISTRY, mds_file, mds_parts
from support.homes import Home, live_at, same, school_files


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
    assert set(home.files) == set(REGISTRY["mnist.npz"].files)
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
    lines: dict[str, list[str]] = {name: [] for name in REGISTRY["mds.npz"].files}
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
    with pytest.raises(FileNotFoundError, match=r"dvd has \d+ reviews .*, expected 1809 \(1433, 133\)"):
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
