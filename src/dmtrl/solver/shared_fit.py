"""`fit_shared`: what all tasks share, and the shrunken level of each task, over a running engine from sums alone.

The squared loss takes one exchange, other smooth losses a few Newton rounds (docs/math.md section 19).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmtrl.engines.base import Engine
from dmtrl.losses import AnyLoss, Loss, OneVsRest, Softmax
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.protocol.rounds import Describe
from dmtrl.solver.layout import Layout
from dmtrl.solver.shared_model import QuadraticModel, ask_model
from dmtrl.solver.shared_strengths import MarginalLikelihood, SharedStrengths, close, estimate

MOST_WEIGHTS = 1000  # shared weights, over all outputs, for which the workers send a matrix
ROWS_PER_WEIGHT = 20  # from which on the squared loss needs no ridge
_GROUPS = 10  # of tasks that are left out in turn
_LEAST_TASKS = 4
_ESTIMATING_ROUNDS = 12  # after which the strengths stay
_SHORTEST = 2.0**-20  # step of a line search
_ROUNDING = 1e-9  # share of the loss: a smaller difference is none
_LIKELIHOODS = ("logistic", "poisson", "softmax")  # negative logarithms of likelihoods without a variance of noise


@dataclass(frozen=True)
class SharedFit:
    """The score of a row of task i is `x . coef + intercept + levels[i]`, that of a new task `x . new_coef +
    new_intercept`; all have one row or entry for each output."""

    coef: np.ndarray  # (k, d)
    intercept: np.ndarray  # (k,)
    levels: np.ndarray  # (m, k)
    new_coef: np.ndarray  # (k, d)
    new_intercept: np.ndarray  # (k,)
    level: float  # strength of the levels; infinite if there are none
    ridge: float  # of the shared weights, for columns with variance one
    scale: np.ndarray  # (k, d): the variances of the columns that the ridge is measured in
    noise: float  # variance of the noise, one for losses that have none
    loss: float  # of the training rows, summed with their weights
    objective: float  # with the penalties
    rounds: int
    converged: bool

    @property
    def weights(self) -> np.ndarray:
        """(k, d + 1): for each output the weights of the features, then the intercept."""
        return np.column_stack([self.coef, self.intercept])

    @property
    def row(self) -> np.ndarray:
        """As weights of a task: the features of each output, then the intercepts."""
        return np.append(self.coef.ravel(), self.intercept)

    @property
    def new_row(self) -> np.ndarray:
        """`row` for new tasks."""
        return np.append(self.new_coef.ravel(), self.new_intercept)

    def scores(self, X: Any) -> np.ndarray:
        """The shared score of rows: (n,), or (n, k) with several outputs."""
        scores = np.asarray(X @ self.coef.T) + self.intercept
        return scores[:, 0] if len(self.intercept) == 1 else scores

    def only(self, tasks: np.ndarray) -> "SharedFit":
        """The same for some tasks, by number."""
        return replace(self, levels=self.levels[tasks])

    @property
    def level_variance(self) -> float:
        """The variance of the levels between tasks."""
        return 0.0 if np.isinf(self.level) else self.noise / self.level


def can_fit_shared(losses: AnyLoss | Sequence[AnyLoss], features: int) -> bool:
    """Whether `fit_shared` can fit these losses: smooth ones, with at most `MOST_WEIGHTS` shared weights."""
    every = _every(losses)
    smooth = all(isinstance(_base(loss), Softmax | Loss) and loss.differentiable for loss in every)
    return smooth and fits_in_sums(features, every[0].outputs)


def fits_in_sums(features: int, outputs: int) -> bool:
    """Whether a problem of this size is small enough."""
    return (features + 1) * outputs <= MOST_WEIGHTS


def fit_shared(
    engine: Engine,
    m: int,
    losses: AnyLoss | Sequence[AnyLoss],
    *,
    level: float | None = None,
    ridge: float | None = None,
    layout: Layout | None = None,
    tol: float = 1e-10,
    max_rounds: int = 50,
) -> SharedFit:
    """Minimise sum of weight times loss + level/2 |levels|^2 + ridge/2 sum of variance times weight^2 over the training
    rows of the workers.

    Parameters
    ----------
    engine : Engine
        A running engine whose workers hold the tasks. Rows that they hold out do not count.
    m : int
        Number of tasks.
    losses : loss or sequence of losses
        Those of the engine.
    level, ridge : float, default=None
        The strengths. None means estimated by marginal likelihood; an infinite `level` means no levels. The squared
        loss has no ridge unless there are fewer than `ROWS_PER_WEIGHT` rows for each weight.
    layout : Layout, default=None
        Which worker holds which units. None means that the workers are asked.
    tol : float, default=1e-10
        Newton rounds end when the model promises to lower the objective by less than this share.
    max_rounds : int, default=50
        Exchanges at most.

    Returns
    -------
    SharedFit
        Weights, levels and strengths.
    """
    every = _every(losses)
    layout = layout or Layout.from_descriptions(engine.broadcast(Describe()), m)
    if not can_fit_shared(losses, layout.d // layout.outputs):
        raise ValueError(
            f"the shared part of the {every[0].name} loss with {layout.d} weights cannot be fitted from sums; it needs "
            f"a smooth built-in loss and at most {MOST_WEIGHTS} weights"
        )
    with single_threaded_blas():
        return _Fit(engine, layout, every, level, ridge).run(tol, max_rounds)


class _Fit:
    """The Newton rounds of one fit."""

    def __init__(
        self, engine: Engine, layout: Layout, losses: Sequence[AnyLoss], level: float | None, ridge: float | None
    ):
        self._engine, self._layout, self._losses = engine, layout, losses
        self._k, self._d = layout.outputs, layout.d // layout.outputs
        self._rows = float(layout.weight.sum())
        self._quadratic = all(loss.name == "squared" for loss in losses)
        self._dispersion = not all(_base(loss).name in _LIKELIHOODS for loss in losses)
        if ridge is None and self._quadratic and self._rows >= ROWS_PER_WEIGHT * self._d:
            ridge = 0.0
        self._given = (level, ridge)
        self._groups = min(_GROUPS, layout.m) if self._quadratic and layout.m >= _LEAST_TASKS else 1
        self._scale: np.ndarray | None = None

    def run(self, tol: float, max_rounds: int) -> SharedFit:
        shared, levels = np.zeros((self._k, self._d + 1)), np.zeros((self._layout.m, self._k))
        model, rounds = self._ask(shared, levels), 1
        if all(loss.name == "poisson" for loss in self._losses):  # from the mean count, not from a score of zero
            weight, slope = float(model.curvature.sum()), float(model.slope[-1])
            shared[0, -1] = np.log(max(weight - slope, 1e-3 * weight) / weight)
            model, rounds = self._ask(shared, levels), rounds + 1
        self._scale = model.scale
        strengths: SharedStrengths | None = None
        converged = False
        while True:
            likelihood = MarginalLikelihood(model, self._rows, self._dispersion, self._scale)
            before = strengths
            if strengths is None or (rounds <= _ESTIMATING_ROUNDS and None in self._given):
                strengths = estimate(likelihood, *self._given, start=strengths)
            if np.isinf(strengths.level) and levels.any():  # an earlier strength allowed them: the model without them
                levels = np.zeros_like(levels)
                model, rounds = self._ask(shared, levels), rounds + 1
                continue
            ridges = likelihood.ridges(strengths.ridge)
            aim = model.minimum(strengths.level, ridges)
            target, aims = aim.shared.reshape(shared.shape), aim.levels
            if self._quadratic:
                shared, levels, converged = target, aims, True
                value = aim.value
                break
            value = model.loss + _penalty(shared, levels, strengths.level, ridges)
            steady = before is not None and close(before, strengths)
            if steady and value - aim.value <= tol * max(abs(value), 1e-300):
                converged = True
                break
            if rounds >= max_rounds:
                break
            shared, levels, model, used = self._search(shared, levels, target, aims, value, strengths.level, ridges)
            rounds += used
            if used == 0:  # no step lowers the objective: rounding
                converged = steady
                break
        noise = 1.0
        if self._dispersion:
            free = model.rank if strengths.ridge == 0 else self._k
            noise = 2.0 * value / max(self._rows - free, 1.0)
        new = self._for_new_tasks(model, strengths, ridges, shared)
        loss = value - _penalty(shared, levels, strengths.level, ridges)
        return SharedFit(
            coef=shared[:, :-1],
            intercept=shared[:, -1],
            levels=levels,
            new_coef=new[:, :-1],
            new_intercept=new[:, -1],
            level=strengths.level,
            ridge=strengths.ridge,
            scale=self._scale.reshape(shared.shape)[:, :-1],
            noise=noise,
            loss=loss,
            objective=value,
            rounds=rounds,
            converged=converged,
        )

    def _ask(self, shared: np.ndarray, levels: np.ndarray) -> QuadraticModel:
        return ask_model(self._engine, self._layout, shared, levels, self._groups)

    def _search(
        self,
        shared: np.ndarray,
        levels: np.ndarray,
        target: np.ndarray,
        aims: np.ndarray,
        value: float,
        level: float,
        ridges: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, QuadraticModel, int]:
        """The longest of the steps 1, 1/2, 1/4 ... towards the minimum of the model that lowers the objective, its
        model, and the number of exchanges; zero exchanges if there is no such step."""
        step, used = 1.0, 0
        while step >= _SHORTEST:
            trial, trial_levels = shared + step * (target - shared), levels + step * (aims - levels)
            model = self._ask(trial, trial_levels)
            used += 1
            if model.loss + _penalty(trial, trial_levels, level, ridges) < value:
                return trial, trial_levels, model, used
            step /= 2
        return shared, levels, self._ask(shared, levels), 0

    def _for_new_tasks(
        self, model: QuadraticModel, strengths: SharedStrengths, ridges: np.ndarray, shared: np.ndarray
    ) -> np.ndarray:
        """The shared weights for tasks that are not among these.

        The shared weights describe rows of a task whose level is known. Where the means of a column differ between
        tasks and are correlated with their levels, a fit without levels predicts new tasks better. It is used if
        leaving out groups of tasks shows that by more than a standard error (62). Squared loss only: the quadratic
        model of another loss is made around the levels, and says little about tasks without them.
        """
        if np.isinf(strengths.level) or self._groups == 1:
            return shared
        worse = np.empty(self._groups)
        for g in range(self._groups):
            errors = [
                model.without_levels(model.minimum(level, ridges, without=g).shared, g)
                for level in (strengths.level, np.inf)
            ]
            worse[g] = errors[0] - errors[1]
        least = worse.std(ddof=1) / np.sqrt(self._groups) + _ROUNDING * abs(model.loss)
        if worse.mean() <= least:
            return shared
        return model.minimum(np.inf, ridges).shared.reshape(shared.shape)


def _penalty(shared: np.ndarray, levels: np.ndarray, level: float, ridges: np.ndarray) -> float:
    of_levels = 0.5 * level * float(np.vdot(levels, levels)) if np.isfinite(level) else 0.0
    return of_levels + 0.5 * float(ridges @ shared.ravel() ** 2)


def _every(losses: AnyLoss | Sequence[AnyLoss]) -> list[AnyLoss]:
    return list(losses) if isinstance(losses, Sequence) else [losses]


def _base(loss: AnyLoss) -> AnyLoss:
    """The loss for two classes of a one-vs-rest loss."""
    return loss.binary if isinstance(loss, OneVsRest) else loss
