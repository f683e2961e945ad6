"""Open the data files of a command and find the columns it needs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.exceptions import InputError, Setting
from dmtrl.tables import TableFiles, open_files, require_column
from dmtrl.tables.names import column_hint, listed, quoted
from dmtrl.tables.preparation import Preparation

FILE = "file"  # the task column if each file is a task


def open_with_tasks(source: TableFiles, task: str | None, notes: list[str]) -> tuple[TableFiles, str, bool]:
    """The source, its task column, and whether file names are the tasks.

    task None: the key of the paths, the column that the format has by convention, or the name of each file.
    """
    names = source.names
    if task is not None:
        if task not in names and len(source.files) > 1:
            problem = f"there is no column {task!r}; {column_hint(task, names)}; to make each file a task, leave out "
            raise InputError(problem, Setting("task"))
        require_column(task, names)
        return source, task, False
    keys = sorted({key for part in source.files for key in part.constants})
    default = {"npz": "task", "libsvm": "qid"}.get(source.format)
    task = keys[0] if len(keys) == 1 else default if default in names else None
    if task is not None:
        return source, task, False
    if len(source.files) < 2:
        raise InputError("the task column is not known; pass ", Setting("task"), f" with one of {listed(names)}")
    task = FILE
    while task in names:
        task += "_name"
    stems = quoted([file.stem for file in source.files], 3)
    notes.append(f"each of the {len(source.files):,} files is a task: {stems}")
    return source.with_file_names(task), task, True


def open_as_fitted(model: Any, data: Sequence[str | Path], notes: list[str], encoding: str | None) -> TableFiles:
    """Open data of the same format as that of the model's fit, with a task column."""
    preparation = getattr(model, "preparation_", None)
    if not isinstance(preparation, Preparation):
        raise ValueError(
            "the model was fitted on arrays and cannot prepare the columns of data files; use it in Python, or fit a "
            "model with dmtrl fit"
        )
    source = open_files(data, encoding)
    if (source.format == "libsvm") != (preparation.width is not None):
        fitted = "a libsvm file" if preparation.width is not None else "named columns"
        raise ValueError(f"the model was fitted on {fitted}, but {source.files[0].path} is {source.format}")
    if preparation.task not in source.names and preparation.task_is_file_name:
        return source.with_file_names(preparation.task)
    return open_with_tasks(source, preparation.task, notes)[0]


def name_indices(texts: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The index of each text among the names, -1 if it is not among them."""
    index = {str(name): i for i, name in enumerate(names.tolist())}
    return np.fromiter((index.get(text, -1) for text in texts), dtype=int, count=len(texts))
