"""Arguments that people pass by mistake: one sentence that says what to do, before anything is computed."""

import hashlib
import io
import json
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from dmtrl import MTRLClassifier, MTRLRegressor, MTRLRegressorCV, ScaleWarning, load

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X[:, 0] + RNG.normal(size=60)
TASKS = np.repeat(["a", "b", "c"], 20)


def _objects(values: list[Any]) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


PAIRS = [("north", 1)] * 30 + [("south", 2)] * 30
LAZY = pl.DataFrame({"x": X[:, 0], "t": TASKS}).lazy()
MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "tuples": (
        lambda: MTRLRegressor().fit(X, Y, tasks=PAIRS),
        ValueError,
        r"the tuple \('north', 1\); join its parts, as in 'north-1'",
    ),
    "objects": (lambda: MTRLRegressor().fit(X, Y, tasks=_objects(PAIRS)), ValueError, "got the tuple"),
    "keys": (lambda: MTRLRegressor().fit({("n", 1): (X, Y), ("s", 2): (X, Y)}), ValueError, "got the tuple"),
    "lazy X": (
        lambda: MTRLRegressor(task_column="t").fit(LAZY, Y),
        TypeError,
        r"X is a LazyFrame, .*; call collect\(\) first",
    ),
    "lazy y": (
        lambda: MTRLRegressor().fit(X, LAZY.select("x"), tasks=TASKS),
        TypeError,
        r"y is a LazyFrame.*collect\(\)",
    ),
    "lazy tasks": (lambda: MTRLRegressor().fit(X, Y, tasks=LAZY.select("t")), TypeError, r"tasks is a LazyFrame"),
    "lazy new": (lambda: MTRLRegressor().fit(X, Y, tasks=TASKS).predict(LAZY, tasks=TASKS), TypeError, r"collect\(\)"),
    "one function": (  # not print: Ray replaces it
        lambda: MTRLRegressor(callbacks=len).fit(X, Y),
        TypeError,
        "got <built-in function len>; pass a list with that function",
    ),
    "numbers": (
        lambda: MTRLClassifier(callbacks=[3]).fit(X, Y > 0),
        TypeError,
        r"callbacks must be a list of functions, got \[3\]",
    ),
    "lambdas": (
        lambda: MTRLRegressorCV(lambdas=0.1).fit(X, Y),
        ValueError,
        r"lambdas must be a list of numbers, got 0.1; pass lambdas=\[0.1\]",
    ),
    "commons": (
        lambda: MTRLRegressorCV(commons=1.0).fit(X, Y, tasks=TASKS),
        ValueError,
        r"commons must .* pass commons=\[1.0\]",
    ),
    "words": (
        lambda: MTRLRegressorCV(lambdas="auto").fit(X, Y),
        ValueError,
        "lambdas must be a list of numbers, got 'auto'",
    ),
    "tol": (lambda: MTRLRegressor(tol=1).fit(X, Y), ValueError, "tol must be below 1"),
    "tol in cv": (lambda: MTRLRegressorCV(tol=2.0).fit(X, Y), ValueError, "tol must be below 1"),
    "X": (
        lambda: MTRLRegressor().fit(1e200 * X, Y, tasks=TASKS),
        ValueError,
        r"task 'a', row 0, column 0: X contains .*e\+199, which is too large",
    ),
    "X in cv": (lambda: MTRLRegressorCV().fit(1e200 * X, Y, tasks=TASKS), ValueError, "X contains .*scale the column"),
    "sparse X": (
        lambda: MTRLRegressor().fit(sparse.csr_matrix(1e200 * X), Y),
        ValueError,
        "X contains .*scale the column",
    ),
    "float32": (
        lambda: MTRLRegressor().fit((1e18 * X).astype(np.float32), Y),
        ValueError,
        "X contains .*scale the column",
    ),
    "y": (
        lambda: MTRLRegressor().fit(X, 1e200 * Y, tasks=TASKS),
        ValueError,
        r"task 'a', row 0: y contains .*; scale y",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_by_one_sentence(mistake: str) -> None:
    call, kind, words = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        call()
    assert re.search(words, str(caught.value))
    assert "\n" not in str(caught.value)


def test_one_huge_column_is_told_under_cross_validation() -> None:
    huge = X * [1, 1e6, 1]
    with pytest.warns(ScaleWarning, match="column 1 of X varies .* scale the columns"):
        MTRLRegressorCV(lambdas=[1e9], commons=[0.0]).fit(huge, Y, tasks=TASKS)
    with pytest.warns(ScaleWarning, match="column 1 of X"):
        MTRLRegressorCV(lambdas=[1e9], commons=[0.0]).fit(sparse.csr_matrix(huge), Y, tasks=TASKS)
    frame = pl.DataFrame(huge, schema=["age", "income", "height"])
    with pytest.warns(ScaleWarning, match="column 'income' of X"):
        MTRLRegressorCV(lambdas=[1e9], commons=[0.0]).fit(frame, Y, tasks=TASKS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MTRLRegressorCV(lambdas=[1.0], commons=[0.0]).fit(X * [1, 100, 1], Y, tasks=TASKS)


def _sealed(entries: dict[str, bytes], compression: int) -> bytes:
    """An archive with the checksum of a model file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=compression)
        archive.comment = b"0" * 64
    data = buffer.getvalue()[:-64]
    return data + hashlib.sha256(data).hexdigest().encode()


def test_a_model_file_is_not_unpacked_before_its_sizes_are_checked(tmp_path: Path) -> None:
    """An archive of zeros that would fill the memory, and one whose array is not as large as described."""
    MTRLRegressor().fit(X, Y, tasks=TASKS).save(tmp_path / "good.dmtrl")
    with zipfile.ZipFile(tmp_path / "good.dmtrl") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    (tmp_path / "same.dmtrl").write_bytes(_sealed(entries, zipfile.ZIP_STORED))
    np.testing.assert_array_equal(load(tmp_path / "same.dmtrl").coef_, load(tmp_path / "good.dmtrl").coef_)
    bomb = dict(entries, **{"dmtrl-model.json": b" " * 50_000_000 + entries["dmtrl-model.json"]})
    (tmp_path / "bomb.dmtrl").write_bytes(_sealed(bomb, zipfile.ZIP_DEFLATED))
    assert (tmp_path / "bomb.dmtrl").stat().st_size < 200_000
    with pytest.raises(ValueError, match=r"bomb\.dmtrl cannot be read .*: its entry 'dmtrl-model.json' is compressed"):
        load(tmp_path / "bomb.dmtrl")
    header = json.loads(entries["dmtrl-model.json"])
    key = next(key for key, (_, shape, _) in header["arrays"].items() if len(shape) == 2)
    header["arrays"][key][1] = [10**6, 10**6]
    wrong = dict(entries, **{"dmtrl-model.json": json.dumps(header).encode()})
    (tmp_path / "wrong.dmtrl").write_bytes(_sealed(wrong, zipfile.ZIP_STORED))
    with pytest.raises(ValueError, match=rf"its array '{re.escape(key)}' has .* bytes, but its description says"):
        load(tmp_path / "wrong.dmtrl")
