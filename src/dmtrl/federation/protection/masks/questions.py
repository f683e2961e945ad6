"""Statistics as the question of a masked sum, and back from the sum: both halves must agree on the order of numbers."""

import numpy as np

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.study import CellCounts, CountCells, MeasureNorms, MeasureSpread, SumFeatures, SumUp


def split_counts(study: Study, sums: np.ndarray) -> CellCounts:
    """The counts of all sites from one vector: present cells, sums of cells, and rows of levels."""
    present, totals, levels = np.split(sums, [study.moments, 2 * study.moments])
    return CellCounts(present=np.round(present).astype(np.int64), sums=totals, levels=np.round(levels).astype(np.int64))


def request_of(masked: SumUp) -> CountCells | MeasureSpread | SumFeatures | MeasureNorms:
    """The request whose answer is a site's part in a masked sum."""
    text, numbers = masked.text, masked.numbers
    match masked.question:
        case "cell_counts":
            return CountCells()
        case "spread":
            return MeasureSpread(means=numbers)
        case "feature_sums":
            return SumFeatures(preparation=text)
        case "norms":
            return MeasureNorms(preparation=text, x_centre=numbers[:-1], y_centre=float(numbers[-1]))
    raise RefusedBySiteError("the coordinator asked for a masked sum that the study does not have")
