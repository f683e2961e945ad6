"""The coordinator's half without protection: sums of statistics, then the rounds of `solve` with the sites' workers."""

from typing import Any

import numpy as np

from dmtrl.federation.protection.base import CoordinatorHalf, CoordinatorSide, PreparedProblem, Report
from dmtrl.federation.protection.sums import prepare_from_sums
from dmtrl.federation.study.study_file import Study
from dmtrl.progress import GapProgress
from dmtrl.solver.outcome import Outcome, RoundRecord
from dmtrl.solver.problem import Problem


class PlainCoordinator(CoordinatorHalf):
    def __init__(self, study: Study, side: CoordinatorSide):
        self._study, self._side = study, side

    def prepare(self, rows: int) -> PreparedProblem:
        side = self._side
        return prepare_from_sums(self._study, rows, side.sites.ask_all, side.report, "adding up statistics")

    def fit(self, model: Any, problem: Problem, owner: np.ndarray) -> Outcome:
        """Choose lambda and fit, on the sites that have a task to fit."""
        tasks = problem.tasks
        assert tasks is not None
        fitted, names = np.unique(owner[tasks.used]).tolist(), [str(name) for name in tasks.names[tasks.used]]
        model.set_params(callbacks=[_Watch(self._side.report, self._study.fit.tolerance)])
        with self._side.engine(fitted, names) as engine:
            outcome: Outcome = model.fit_problem(problem, engine, self._side.session)
        model.set_params(callbacks=None)
        return outcome


class _Watch:
    """A callback of the estimator that reports the progress of the cross-validation and of the fit."""

    def __init__(self, report: Report, tol: float):
        self._report, self._of_gap = report, GapProgress(tol)
        self._done, self._fits = 0.0, ""  # of the cross-validation

    def __call__(self, record: RoundRecord) -> None:
        detail = f"round {record.round + 1}, relative gap {record.gap:.2%}"
        self._report("fitting all rows", self._of_gap.share(record), detail, round=record.round + 1, gap=record.gap)

    def on_cv_round(self, record: RoundRecord) -> None:
        self._report("choosing lambda", self._done, self._fits, round=record.round + 1, gap=record.gap)

    def on_cv_fit(self, done: int, total: int) -> None:
        self._done, self._fits = done / total, f"{done} of {total} fits"
        self._report("choosing lambda", self._done, self._fits)
