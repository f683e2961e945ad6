"""A journal in a file: what an interrupted fit had established, for `dmtrl fit --resume`.

Room: beside fitting. The file is a numpy archive without pickled objects, written to a temporary name and renamed. It
names the problem it belongs to by a fingerprint of the data and the settings, and is refused with any other.
"""

import hashlib
import io
import json
import os
import secrets
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.journal import Journal

_KIND = "dmtrl checkpoint 1"


def fingerprint(X: Any, *more: Any) -> str:
    """One word that changes with any bit of the rows, labels, tasks, weights and settings."""
    digest = hashlib.sha256()
    parts = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
    for part in (*parts, *more):
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(json.dumps(part, sort_keys=True).encode())
    return digest.hexdigest()


def write(journal: Journal, problem: str, path: str | os.PathLike[str]) -> None:
    """The whole checkpoint is there in the end, or what was there before."""
    cells = list(journal.scores)
    header = {
        "kind": _KIND, "problem": problem, "cells": cells, "last": journal.last, "strengths": journal.strengths,
    }  # fmt: skip
    arrays = {"header": np.array(json.dumps(header))}
    for name in journal.scores[cells[0]] if cells else ():
        arrays[f"score.{name}"] = np.array([journal.scores[cell][name] for cell in cells])
    if journal.end is not None:
        arrays["end.W"], arrays["end.common"] = journal.end
    if journal.weights is not None:
        arrays["weights"] = journal.weights
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    target = Path(path)
    temporary = target.with_name(f".dmtrl-{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(buffer.getbuffer())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | os.PathLike[str], problem: str) -> Journal:
    """The journal of this very problem; ValueError for anything else."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays["header"]))
        if header["kind"] != _KIND:
            raise KeyError("kind")
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a checkpoint of dmtrl fit, or is damaged; begin anew without --resume"
        ) from error
    if header["problem"] != problem:
        raise ValueError(
            f"{path} belongs to a fit of other data or with other options; "
            "repeat the command that was interrupted, or begin anew without --resume"
        )
    names = [name for name in arrays if name.startswith("score.")]
    cells = [_cell(cell) for cell in header["cells"]]
    scores = {cell: {n.removeprefix("score."): arrays[n][i] for n in names} for i, cell in enumerate(cells)}
    last = None if header["last"] is None else _cell(header["last"])
    end = (arrays["end.W"], arrays["end.common"]) if "end.W" in arrays else None
    strengths = None if header["strengths"] is None else (header["strengths"][0], header["strengths"][1])
    return Journal(scores, last, end, arrays.get("weights"), strengths)


def _cell(parts: list[Any]) -> tuple[float, float, int]:
    return float(parts[0]), float(parts[1]), int(parts[2])
