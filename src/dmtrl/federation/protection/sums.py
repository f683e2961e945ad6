"""The prepared problem from sums of statistics over all sites, for protections whose sums are exact."""

from collections.abc import Callable
from typing import Any

from dmtrl.federation.protection.base import PreparedProblem, Report
from dmtrl.federation.study import preparation
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol import study as messages


def prepare_from_sums(
    study: Study, rows: int, ask: Callable[[Any], list[Any]], report: Report, stage: str
) -> PreparedProblem:
    """Ask for the statistics and add them up. ask: returns the answers of all sites to a request, or only their sum."""
    report(stage, 0.2)
    counts = ask(messages.CountCells())
    spreads = ask(messages.MeasureSpread(means=preparation.means_of(counts)))
    prepared = preparation.prepare(study, rows, counts, spreads)
    if not prepared.feature_names:
        raise ValueError("no column of the study can be used: all are empty or constant at the sites together")
    report(stage, 0.6)
    text = preparation.to_json(prepared)
    sums = ask(messages.SumFeatures(preparation=text))
    x_centre, y_centre = preparation.centres_of(study, rows, sums)
    parts = ask(messages.MeasureNorms(preparation=text, x_centre=x_centre, y_centre=y_centre))
    coordinates = preparation.coordinates_of(rows, x_centre, y_centre, parts)
    return PreparedProblem(prepared, coordinates, preparation.mean_square(rows, coordinates, parts))
