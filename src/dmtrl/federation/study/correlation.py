"""The correlation of a column with the target, which a draft states and a site compares with its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmtrl.federation.study.study_file import StudyColumn


def correlation(column: StudyColumn, values: Sequence[Any] | np.ndarray, y: np.ndarray) -> tuple[float, int]:
    """The correlation of a number, or of a category with two levels, with the target; and from how many rows."""
    if column.kind == "number":
        x = np.asarray(values, dtype=float)
    elif column.kind == "category" and len(column.levels) == 2:
        number = dict(zip(column.levels, (0.0, 1.0), strict=True))
        x = np.array([number.get(word, np.nan) for word in values])
    else:
        return 0.0, 0
    known = ~np.isnan(x)
    n = int(known.sum())
    if n < 3 or x[known].std() == 0 or y[known].std() == 0:
        return 0.0, n
    return float(np.corrcoef(x[known], y[known])[0, 1]), n
