"""The coordinator's side of a private fit: asks the sites for noisy releases and fits the model from them, which is
post-processing. `ask_in_process` and `private_moments` make the releases themselves, from rows in this process.

Every mode asks for a fixed number of releases, and nothing else is asked for. A release is made at a point that the
coordinator chooses, but if a site has made it before, the site answers with the numbers and the point of that time.
So the modes use the point of the answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.base import CoordinatorHalf, CoordinatorSide, PreparedProblem
from dmtrl.federation.protection.noise.accounting import cost_of
from dmtrl.federation.protection.noise.declared import declared
from dmtrl.federation.protection.noise.moments import MomentFormat, Noise, Quadratics, clip_rows, dense, system_noise
from dmtrl.federation.protection.noise.releases import Releases, largest_entry, moment_format, release_size, step_size
from dmtrl.federation.study.privacy_terms import MOMENTS, ROUNDS, Privacy
from dmtrl.federation.study.study_file import Study
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.protocol.study import Release, Released
from dmtrl.relationship import FreeIntercept, Learned
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.outcome import DualPoint, Outcome
from dmtrl.solver.problem import Problem, Strengths
from dmtrl.solver.settings import Settings


@dataclass(frozen=True)
class Answer:
    """A release of all tasks: at which point, the noisy numbers, and the standard deviation of the noise of a task."""

    point: np.ndarray
    values: np.ndarray
    std: np.ndarray


Ask = Callable[[int, np.ndarray, float], Answer]  # number of the release, point, step size
Report = Callable[[int, int], object]  # releases so far, and in all


@dataclass(frozen=True)
class PrivateProblem:
    """What the coordinator knows of the problem."""

    privacy: Privacy
    loss: AnyLoss
    names: Sequence[str]
    features: int
    reg_lambda: float
    common: float  # in units of 1/m
    intercept_ridge: float = 1e-6
    settings: Settings = field(default_factory=Settings)


def fit(problem: PrivateProblem, ask: Ask, report: Report = lambda done, total: None) -> Outcome:
    """Fit the tasks from noisy releases. The certificate is that of the last noisy problem; in mode C there is none,
    and its bounds are infinite."""
    if problem.privacy.mode == ROUNDS:
        return _fit_rounds(problem, ask, report)
    form = moment_format(problem.privacy, problem.loss, problem.features)
    W = np.zeros((len(problem.names), problem.features + 1))
    models = list[Quadratics]()
    for t in range(problem.privacy.releases):
        answer = ask(t, W, step_size(problem.privacy, problem.loss))
        models.append(_quadratics(form, answer))
        # the first model was made far from the solution; all later ones are averaged
        model = Quadratics.mean(models[1:] or models)
        outcome = model.solve(problem.names, problem.reg_lambda, problem.common, problem.settings)
        W = outcome.W
        report(t + 1, problem.privacy.releases)
    return outcome


def _quadratics(form: MomentFormat, answer: Answer) -> Quadratics:
    parts = [form.quadratic(values) for values in answer.values]
    A = np.array([A for A, _ in parts])
    c = np.array([c + A @ w for (A, c), w in zip(parts, answer.point, strict=True)])
    return Quadratics(A, c, np.array([form.spectral_noise(float(std)) for std in answer.std]))


def _fit_rounds(problem: PrivateProblem, ask: Ask, report: Report) -> Outcome:
    """Douglas-Rachford splitting (docs/math.md section 6) with a fixed step and noisy b; the weights of the last half
    of the rounds are averaged."""
    m, width, lam, total = len(problem.names), problem.features + 1, problem.reg_lambda, problem.privacy.releases
    relationship = FreeIntercept(Learned(problem.common / m), problem.intercept_ridge / lam)
    step = step_size(problem.privacy, problem.loss)
    centre, common = np.zeros((m, width)), np.zeros(width)
    B, kept, commons = np.zeros((m, width)), np.zeros((m, width)), np.zeros(width)
    for t in range(total):
        answer = ask(t, centre, step)
        B = answer.values
        U = answer.point + step * B
        prox = relationship.prox(U + step * B, step * lam, common)
        Z, common = prox.W, prox.common
        centre = Z - step * B
        if t >= total // 2:
            kept, commons = kept + Z / (total - total // 2), commons + common / (total - total // 2)
        report(t + 1, total)
    unknown = Certificate(np.inf, -np.inf)
    dual = DualPoint(B, 0.0, 0.0, -np.inf)
    sigma, ones = relationship.update(kept - commons), np.ones(m)
    return Outcome(kept, commons, sigma, unknown, dual, [], False, "private rounds", ones, ones)


class NoiseCoordinator(CoordinatorHalf):
    """Fits the model from noisy releases, which the sites make once and for all."""

    def __init__(self, study: Study, side: CoordinatorSide):
        self._study, self._side = study, side

    def prepare(self, rows: int) -> PreparedProblem:
        prepared, coordinates = declared(self._study)
        return PreparedProblem(prepared, coordinates, 1.0)

    def fit(self, model: Any, problem: Problem, owner: np.ndarray) -> Outcome:
        tasks, coordinates = problem.tasks, problem.coordinates
        assert tasks is not None
        assert coordinates is not None
        study, names = self._study, [str(name) for name in tasks.names]
        common = 0.0 if len(names) == 1 else (study.fit.common or (1.0,))[0]
        private = PrivateProblem(
            study.privacy,
            study.loss,
            names,
            len(coordinates.x_centre),
            study.fit.reg_lambda[0],
            common,
            model.intercept_ridge(coordinates),
            Settings(tol=study.fit.tolerance, seed=study.fit.seed),
        )
        outcome = fit(private, self._ask(owner, private.features), self._report)
        model.set_outcome(replace(problem, strengths=Strengths(private.reg_lambda, common)), outcome)
        return outcome

    def _report(self, done: int, total: int) -> None:
        self._side.report("collecting noisy releases", done / total, f"{done} of {total}")

    def _ask(self, owner: np.ndarray, features: int) -> Ask:
        """Asks every site for its part of a release. owner: the site of each task."""
        study, sites = self._study, self._side.sites
        size, largest = release_size(study.privacy, study.loss, features), largest_entry(study.target.range)

        def ask(number: int, point: np.ndarray, step: float) -> Answer:
            point = np.clip(point, -largest, largest)  # noise can carry it far away; the answer tells where it was made
            points = {k: point[owner == k] for k in np.unique(owner).tolist()}
            answers: dict[int, Released] = sites.ask(
                {k: Release(study=study.hash, number=number, point=part, step=step) for k, part in points.items()}
            )
            for k, part in points.items():
                _check(answers[k], part, size, sites.names[k])
            columns = ([getattr(answers[k], name) for k in points] for name in ("point", "values", "std"))
            return Answer(*map(np.concatenate, columns))

        return ask


def _check(answer: Released, point: np.ndarray, size: int, site: str) -> None:
    shapes = answer.values.shape, answer.point.shape, answer.std.shape
    arrays = answer.values, answer.point, answer.std
    if shapes != ((len(point), size), point.shape, (len(point),)) or not all(np.isfinite(a).all() for a in arrays):
        raise RefusedBySiteError("sent a release that does not fit the study", site=site)


def ask_in_process(privacy: Privacy, loss: AnyLoss, data: TaskData, noise: Noise, label: float) -> Ask:
    """Releases of tasks whose rows are in this process, each with the noise of its own guarantee. label: the largest
    absolute label, which for a guarantee must not be read from the data."""
    blocks = data.sources(1)[0]
    clipped = replace(blocks, X=clip_rows(dense(blocks.X), privacy.row_norm), sample_weight=None)
    releases, mu = Releases(privacy, loss, clipped, label), cost_of(privacy)

    def ask(number: int, point: np.ndarray, step: float) -> Answer:
        return Answer(point, *releases.exact(point, step).with_noise(mu, privacy.releases, noise))

    return ask


def private_moments(
    data: TaskData,
    *,
    epsilon: float,
    delta: float = 1e-5,
    row_norm: float,
    label_bound: float,
    noise: Noise | None = None,
) -> Quadratics:
    """Noisy second moments of every task, after which no row is needed any more (mode A, squared loss).

    Each task gets (epsilon, delta)-differential privacy for the replacement of one of its rows. The numbers of rows are
    not protected. The bounds must not be read from the data.

    Parameters
    ----------
    data : TaskData
        Rows and labels, without sample weights.
    epsilon, delta : float
        The guarantee.
    row_norm : float
        Rows are shortened to this norm.
    label_bound : float
        Labels are clipped to [-label_bound, label_bound].
    noise : callable, default=None
        Returns standard normal numbers of a shape. None: from the randomness of the operating system.

    Returns
    -------
    Quadratics
        Its method `solve` fits the tasks for any lambda, with a certificate of the noisy problem.
    """
    if data.sample_weight is not None:
        raise ValueError("private moments need rows of equal weight; remove sample_weight")
    privacy, loss, d = Privacy(MOMENTS, epsilon, delta, row_norm, label_bound, 1), get_loss("squared"), data.X.shape[1]
    ask = ask_in_process(privacy, loss, data, noise or system_noise, label_bound)
    return _quadratics(moment_format(privacy, loss, d), ask(0, np.zeros((data.m, d + 1)), 0.0))
