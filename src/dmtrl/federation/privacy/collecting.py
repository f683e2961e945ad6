"""The coordinator's side of a private study: asks the sites for releases and fits the model from them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dmtrl.estimators.problem import FitProblem
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.asking import Asker
from dmtrl.federation.messages import Release, Released
from dmtrl.federation.privacy.fitting import Answer, PrivateProblem, fit
from dmtrl.federation.privacy.releases import largest_entry, release_size
from dmtrl.federation.study import Study
from dmtrl.solver.outcome import Outcome
from dmtrl.solver.settings import Settings


def fit_privately(
    study: Study,
    sites: Asker,
    site_names: Sequence[str],
    owner: np.ndarray,
    model: Any,
    problem: FitProblem,
    report: Callable[[int, int], object],
) -> Outcome:
    """Fit the model from noisy releases, which the sites make once and for all. owner: the site of each task."""
    names = [str(name) for name in problem.tasks]
    size = release_size(study.privacy, study.loss, len(problem.coordinates.x_centre))

    largest = largest_entry(study.target.range)

    def ask(number: int, point: np.ndarray, step: float) -> Answer:
        point = np.clip(point, -largest, largest)  # noise can carry it far away; the answer tells where it was made
        points = {k: point[owner == k] for k in np.unique(owner).tolist()}
        answers: dict[int, Released] = sites.ask({
            k: Release(study=study.hash, number=number, point=part, step=step) for k, part in points.items()
        })  # fmt: skip
        for k, part in points.items():
            _check(answers[k], part, size, site_names[k])
        columns = (np.concatenate([getattr(answers[k], name) for k in points]) for name in ("point", "values", "std"))
        return Answer(*columns)

    common = 0.0 if len(names) == 1 else (study.fit.common or (1.0,))[0]
    private = PrivateProblem(
        study.privacy, study.loss, names, len(problem.coordinates.x_centre), study.fit.reg_lambda[0], common,
        model.intercept_ridge(problem.coordinates), Settings(tol=study.fit.tolerance, seed=study.fit.seed),
    )  # fmt: skip
    outcome = fit(private, ask, report)
    model.set_outcome(problem, outcome, private.reg_lambda, common)
    return outcome


def _check(answer: Released, point: np.ndarray, size: int, site: str) -> None:
    shapes = answer.values.shape, answer.point.shape, answer.std.shape
    arrays = answer.values, answer.point, answer.std
    if shapes != ((len(point), size), point.shape, (len(point),)) or not all(np.isfinite(a).all() for a in arrays):
        raise RefusedBySiteError("sent a release that does not fit the study", site=site)
