"""`dmtrl report` as a library function: a saved model, and data if there is some, become a page.

Room: beside predicting. The columns are read as the model's preparation says, not as this file looks; rows without an
answer, or of a task that the model does not have, are left out and counted.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.estimators.model_file import load
from dmtrl.report.model_page import write_model_page
from dmtrl.report.page import require_packages
from dmtrl.tables import TableFiles, require_column
from dmtrl.tables import columns as read
from dmtrl.tables.preparation import Preparation, without_missing
from dmtrl.workflows.fit import Silence, Watcher, open_as_fitted


def report(
    model: str | Path, data: Sequence[str | Path], out: str | Path, watcher: Watcher | None = None
) -> tuple[Path, list[str]]:
    """Write the page; its path, and notes about rows that were left out."""
    watcher = watcher or Silence()
    require_packages()
    fitted, notes = _load(model), list[str]()
    if not data:
        return write_model_page(fitted, out), notes
    if not isinstance(getattr(fitted, "preparation_", None), Preparation):
        raise ValueError(
            f"{model} was fitted in Python and does not know how to prepare columns: leave the data out, or in Python "
            "call dmtrl.report.model_page.write_model_page(model, path, X, y, tasks)"
        )
    watcher.stage("reading")
    X, y, tasks = read_rows(fitted, data, notes, watcher)
    comparison = None
    if len(fitted.tasks_) > 1:
        watcher.stage("comparing with each task alone and all tasks as one")
        comparison = fitted.compare(X, y, tasks)
    watcher.stage("writing the page")
    return write_model_page(fitted, out, X, y, tasks, comparison), notes


def _load(path: str | Path) -> Any:
    try:
        return load(path)
    except ValueError as error:
        if "is not a dmtrl model" in str(error):
            raise ValueError(f"{path} is not a dmtrl model; report takes the model first, then the data") from None
        raise


def read_rows(
    model: Any, data: Sequence[str | Path], notes: list[str], watcher: Watcher | None = None
) -> tuple[Any, np.ndarray, np.ndarray]:
    """X, y and tasks as the model was fitted on them."""
    from scipy import sparse

    watcher = watcher or Silence()
    preparation: Preparation = model.preparation_
    source = _open(data, preparation, notes)
    classes = getattr(model, "classes_", None)
    parts: list[Any] = []
    answers: list[np.ndarray] = []
    codes: list[np.ndarray] = []
    left_out: Counter[str] = Counter()
    for batch in source.batches([*preparation.used, preparation.task, preparation.target], preparation.width):
        columns = without_missing(batch.columns, preparation.missing)
        X = preparation.transform(columns, batch.block)
        task = _places(read.texts(columns.column(preparation.task)), model.tasks_)
        target = columns.column(preparation.target)
        if classes is None:
            y = read.numbers(target, preparation.target)
            known = ~np.isnan(y)
        else:
            y = _places(read.texts(target), classes)
            known = y >= 0
        keep = known & (task >= 0)
        parts, answers, codes = [*parts, X[keep]], [*answers, y[keep]], [*codes, task[keep]]
        left_out["no answer that the model knows"] += int((~known).sum())
        left_out["a task that the model does not have"] += int((known & (task < 0)).sum())
        watcher.share(batch.done)
    notes += [f"left out: {count:,} rows with {what}" for what, count in left_out.items() if count]
    kept = np.concatenate(answers) if answers else np.zeros(0)
    if len(kept) == 0:
        raise ValueError(
            f"{source.files[0].path} has no row of a task of the model with a known {preparation.target!r}"
        )
    X = sparse.vstack(parts, format="csr") if sparse.issparse(parts[0]) else np.concatenate(parts)
    return X, kept if classes is None else classes[kept], model.tasks_[np.concatenate(codes)]


def _open(data: Sequence[str | Path], preparation: Preparation, notes: list[str]) -> TableFiles:
    source = open_as_fitted(data, preparation, notes)
    for name in (*preparation.used, preparation.target):
        require_column(name, source.names)
    return source


def _places(words: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The place of each word among the names; -1 for a word that is none of them."""
    place = {str(name): i for i, name in enumerate(names.tolist())}
    return np.fromiter((place.get(word, -1) for word in words), dtype=int, count=len(words))
