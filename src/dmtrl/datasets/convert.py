"""Convert published files to the arrays of our archives: School (.mat), MNIST (idx), Multi-Domain Sentiment (text).

The functions turn bytes into arrays, without files or the network. They raise if the input is not as expected.
"""

import hashlib
import io
import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import sparse

from dmtrl.datasets.registry import MDS_DOMAINS, SCHOOL_SPLITS, mds_file, mds_parts

Files = Mapping[str, bytes]
Arrays = dict[str, np.ndarray]

SCHOOL_FEATURES = [
    *("year_1985", "year_1986", "year_1987", "pct_fsm", "pct_vr1", "gender_female", "gender_male"),
    *("vrband_vr3", "vrband_vr1", "vrband_vr2", *(f"ethnic_code{k}" for k in range(1, 12))),
    *("schoolgender_mixed", "schoolgender_male", "schoolgender_female"),
    *("denomination_maintained", "denomination_church_of_england", "denomination_roman_catholic", "bias"),
]
MDS_TERMS = 10_000
MDS_FOLDS = 10


def school(files: Files) -> Arrays:
    """Transpose to one row per pupil, with a task number for each row and indices that count from zero."""
    from scipy.io import loadmat

    def read(name: str) -> Mapping[str, np.ndarray]:
        return loadmat(io.BytesIO(files[name]))

    def from_zero(matrix: np.ndarray) -> np.ndarray:
        return np.ravel(matrix).astype(np.int32) - np.int32(1)

    whole = read("school_b.mat")
    X = np.ascontiguousarray(whole["x"].T, dtype=np.float32)
    starts = from_zero(whole["task_indexes"])
    arrays = {
        "X": X,
        "y": np.ravel(whole["y"]).astype(np.float32),
        "task": np.repeat(np.arange(len(starts), dtype=np.int32), np.diff(starts, append=len(X))),
        "task_names": np.array([f"school_{k}" for k in range(1, len(starts) + 1)]),
        "feature_names": np.array(SCHOOL_FEATURES),
    }
    for k in range(1, SCHOOL_SPLITS + 1):
        split = read(f"school_{k}_indexes.mat")
        arrays[f"train_{k}"], arrays[f"test_{k}"] = from_zero(split["tr"]), from_zero(split["tst"])
    return arrays


def mnist(files: Files) -> Arrays:
    """Training images, then test images, with unchanged pixel values."""
    images = [idx_array(files[f"{part}-images-idx3-ubyte.gz"]) for part in ("train", "t10k")]
    labels = [idx_array(files[f"{part}-labels-idx1-ubyte.gz"]) for part in ("train", "t10k")]
    return {
        "X": np.concatenate([part.reshape(len(part), -1) for part in images]),
        "y": np.concatenate(labels),
        "split": np.repeat(np.array([0, 1], dtype=np.int8), [len(part) for part in labels]),
        "task_names": np.array([f"digit_{k}" for k in range(10)]),
    }


def idx_array(data: bytes) -> np.ndarray:
    """Parse an idx file of bytes: two zeros, the type 8, the number of axes, their lengths, the values."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError("not an idx file of bytes")
    head = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, head, 4))
    if len(data) != head + math.prod(shape):
        raise ValueError("an idx file of the wrong length")
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)


def mds(files: Files) -> Arrays:
    """Reviews as counts of the most frequent words and pairs of words; `load_mds` describes the rows.

    Rows that repeat within a domain, rows with the counts of an earlier row, and rows without a kept term are dropped.
    A digest of each text, not a random generator, determines `balanced` and `fold`.
    """
    rows = [row for number, domain in enumerate(MDS_DOMAINS) for row in _reviews(files, number, domain)]
    counts, vocab = _count_terms([text for text, *_ in rows])
    kept = _first_of_each(counts)
    counts = counts[kept]
    task, y, origin, part = np.array([rows[k][1:] for k in kept]).T
    _check_counts(task, y, origin)
    key = [hashlib.sha256(rows[k][0].encode()).digest() for k in kept]
    balanced, fold = _assign_folds(key, task, y, origin)
    return {
        "data": counts.data.astype(np.uint16),
        "indices": counts.indices.astype(np.int32),
        "indptr": counts.indptr.astype(np.int32),
        "shape": np.array(counts.shape),
        "vocab": vocab,
        "y": y.astype(np.int8),
        "task": task.astype(np.int32),
        "task_names": np.array(list(MDS_DOMAINS)),
        "origin": origin.astype(np.int8),
        "source_split": part.astype(np.int8),
        "balanced": balanced,
        "fold": fold,
    }


def _reviews(files: Files, number: int, domain: str) -> list[tuple[str, int, int, int, int]]:
    """(text, task, label, origin, part) of a domain. origin 0: labelled at four stars; 1: one-star reviews."""
    found: dict[str, tuple[str, int, int, int, int]] = {}
    for origin, threshold in enumerate((4, 2)):
        for part in mds_parts(domain):
            for text, label in labelled_texts(files[mds_file(domain, threshold, part)]):
                if origin == 0 or label == -1:
                    row = (text, number, label, origin, ("train", "dev", "test").index(part))
                    found.setdefault(text, row)
    return list(found.values())


def labelled_texts(data: bytes) -> list[tuple[str, int]]:
    """Parse lines of a review, a tab, and its label 1 or -1. Other lines are skipped, as in the published code."""
    pairs = [line.strip().split("\t") for line in data.decode("utf-8", errors="replace").split("\n")]
    return [(pair[0], int(pair[1])) for pair in pairs if len(pair) == 2 and pair[1] in ("1", "-1")]


def terms(text: str) -> list[str]:
    """Words and pairs of adjacent words. A token without a letter or digit is not a word and ends a pair."""
    found, before = [], ""
    for token in text.split():
        if not any(character.isalnum() for character in token):
            before = ""
            continue
        found.append(token)
        if before:
            found.append(f"{before} {token}")
        before = token
    return found


def _count_terms(texts: list[str]) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Counts of the most frequent terms, by frequency and then alphabetically."""
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(analyzer=terms)
    counts = counter.fit_transform(texts)
    names = counter.get_feature_names_out()  # alphabetical; the stable sort keeps that order for ties
    kept = np.argsort(-np.asarray(counts.sum(axis=0)).ravel(), kind="stable")[:MDS_TERMS]
    counts = counts[:, kept].tocsr()
    counts.sort_indices()
    return counts, names[kept].astype(str)


def _first_of_each(counts: sparse.csr_matrix) -> list[int]:
    """The rows that have at least one term and whose counts no earlier row has."""
    first: dict[tuple[bytes, bytes], int] = {}
    for row, (a, b) in enumerate(zip(counts.indptr[:-1], counts.indptr[1:], strict=True)):
        if a < b:
            first.setdefault((counts.indices[a:b].tobytes(), counts.data[a:b].tobytes()), row)
    return list(first.values())


def _check_counts(task: np.ndarray, y: np.ndarray, origin: np.ndarray) -> None:
    """Compare with the known counts. A few rows may differ, depending on which of equally frequent terms are kept."""
    for number, (domain, stated) in enumerate(MDS_DOMAINS.items()):
        mine = task == number
        found = (int(mine.sum()), int((y[mine] > 0).sum()), int(origin[mine].sum()))
        if any(abs(a - b) > max(3, b // 100) for a, b in zip(found, stated, strict=True)):
            raise ValueError(
                f"{domain} has {found[0]} reviews ({found[1]} positive, {found[2]} extra), expected "
                f"{stated[0]} ({stated[1]}, {stated[2]})"
            )


def _assign_folds(
    key: list[bytes], task: np.ndarray, y: np.ndarray, origin: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Choose `balanced` and `fold` by the keys of the rows.

    balanced: equally many rows of both labels in each domain, those with the smallest keys. fold: assigned in turn, in
    order of key, to the rows of each kind (domain, label, origin, balanced).
    """
    order = np.array(sorted(range(len(key)), key=key.__getitem__), dtype=int)
    balanced, fold = np.zeros(len(key), dtype=bool), np.zeros(len(key), dtype=np.int8)
    for number in np.unique(task):
        sides = [order[(task[order] == number) & (y[order] == label)] for label in (-1, 1)]
        for side in sides:
            balanced[side[: min(map(len, sides))]] = True
    dealt = order[np.lexsort((balanced[order], origin[order], y[order], task[order]))]  # lexsort is stable
    fold[dealt] = np.arange(len(dealt)) % MDS_FOLDS
    return balanced, fold


CONVERTERS: dict[str, Callable[[Files], Arrays]] = {"school.npz": school, "mnist.npz": mnist, "mds.npz": mds}
