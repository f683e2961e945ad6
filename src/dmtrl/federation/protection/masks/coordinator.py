"""The coordinator's side of a study with masked sums: joint splitting on Gram matrices.

The proximal map of the penalty needs V^T V and the sum of the rows of V, not V itself: Z = w_0 + (V - w_0) M with a
d x d matrix M, which the sites apply to their own rows. `rotated` makes a matrix with the same Gram matrix and the same
sum; it is some rotation of the tasks, on which the ordinary relationship computes w_0, penalties and conjugates.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dmtrl.federation.protection.base import Asking, CoordinatorHalf, CoordinatorSide, PreparedProblem
from dmtrl.federation.protection.masks.masking import LEAST_SITES, unmasked
from dmtrl.federation.protection.masks.questions import split_counts
from dmtrl.federation.protection.sums import prepare_from_sums
from dmtrl.federation.study import preparation
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.codec import name_of
from dmtrl.protocol.study import ANSWERS, CellCounts, FeatureSums, Publish, ShareKey, Spread, SumUp
from dmtrl.relationship import Learned
from dmtrl.solver.api import warn_unless_converged
from dmtrl.solver.certificate import Certificate, scaled_dual
from dmtrl.solver.methods.base import MAX_STEP_CHANGES, first_step, is_straight, step_change
from dmtrl.solver.methods.splitting import STRIDE
from dmtrl.solver.outcome import DualPoint, Outcome
from dmtrl.solver.problem import Problem, Strengths
from dmtrl.solver.settings import Settings

_SHARE, _POWER = 0.8, 0.7  # of the balance (20)


class MaskedSums:
    """Asks all sites for parts of sums, and adds them up. A new one has new keys."""

    def __init__(self, study: Study, sites: Asking):
        if sites.n_workers < LEAST_SITES:
            raise ValueError(f"masked sums need at least {LEAST_SITES} sites, got {sites.n_workers}")
        self._study, self._sites, self._session = study, sites, secrets.token_hex(16)
        keys = sites.ask_all(ShareKey(study=study.hash, session=self._session))
        self._keys, self._counter = np.array([answer.key for answer in keys], dtype=np.uint8), 0

    def ask(self, question: str, numbers: np.ndarray | Sequence[float] = (), text: str = "") -> np.ndarray:
        """The sum over all sites of their numbers for a question."""
        request = SumUp(
            study=self._study.hash,
            session=self._session,
            counter=self._counter,
            question=question,
            text=text,
            numbers=np.asarray(numbers, dtype=float),
            keys=self._keys,
        )
        answers = self._sites.ask_all(request)
        self._counter += 1
        return unmasked([answer.values for answer in answers])

    def rows(self) -> int:
        """The number of rows of all sites."""
        return round(float(self.ask("rows")[0]))

    def ask_all(self, request: Any) -> list[Any]:
        """The answer to a request for statistics, summed over all sites, in a list of one."""
        numbers = [np.atleast_1d(value) for value in vars(request).values() if not isinstance(value, str)]
        kind = ANSWERS[type(request)]
        found = self.ask(name_of(kind), np.concatenate([*numbers, []]), getattr(request, "preparation", ""))
        if kind is CellCounts:
            return [split_counts(self._study, found)]
        if kind is Spread:
            return [Spread(squares=found)]
        features = found[:-1] if kind is FeatureSums else float(found[0])
        return [kind(features=features, target=float(found[-1]))]


def rotated(gram: np.ndarray, total: np.ndarray, m: int) -> np.ndarray:
    """A matrix of m rows with this Gram matrix of its columns and this sum of its rows."""
    mean = total / m
    values, vectors = np.linalg.eigh(gram - m * np.outer(mean, mean))
    kept = np.argsort(values)[::-1][: min(m - 1, len(values))]
    # columns that are orthonormal and orthogonal to the vector of ones
    basis = np.linalg.qr(np.column_stack([np.ones(m), np.eye(m)[:, : m - 1]]))[0][:, 1:]
    spread = basis[:, : len(kept)] * np.sqrt(np.maximum(values[kept], 0.0))
    return np.asarray(spread @ vectors[:, kept].T + mean)


def fit_masked(
    sums: MaskedSums,
    features: int,
    reg_lambda: float,
    common: float,
    ridge: float,
    settings: Settings,
    report: Callable[[int, float], object],
) -> tuple[np.ndarray, Certificate, list[float]]:
    """Rounds until the relative gap is at most tol. common: in units of 1/m; ridge: on the intercepts.

    Returns what the coordinator knows: the common component, the certificate, and the relative gap of each round.
    """
    tasks, conjugate, at_zero, longest = sums.ask("start")
    m = round(float(tasks))
    relationship, weight = Learned(common / m if m > 1 else 0.0), ridge / reg_lambda
    longest_step = longest / m
    s, changes = min(first_step(reg_lambda, m), longest_step), 0
    best, dual = math.inf, scaled_dual(0.0, float(conjugate), float(at_zero))
    w0 = best_w0 = np.zeros(features)  # the common component
    penalty, accuracy, gaps = 0.0, settings.local_accuracy, list[float]()
    d, half = features, features * (features + 1) // 2
    for t in range(settings.max_rounds):
        accuracy = _sharpened(accuracy, gaps)
        target = accuracy * (best - dual) / m if math.isfinite(best) else math.inf
        relax = settings.relaxation - 1.0 if t else 0.0
        found = sums.ask("improve", [t, s, min(target, 1e300), relax])
        scalars, V_gram, V_sum, B_gram, B_sum = np.split(found, np.cumsum([7, half, d, half]))
        loss, conjugates, intercepts, b_intercepts, slope2, turned2, u2 = scalars.tolist()
        objective = loss + reg_lambda * (penalty + 0.5 * weight * intercepts)
        B = rotated(_square(B_gram, d), B_sum, m)
        penalty_conjugate = relationship.conjugate(B) + 0.5 * b_intercepts / weight
        bound = scaled_dual(penalty_conjugate / reg_lambda, conjugates, float(at_zero))
        keep = objective < best
        if keep:
            best, best_w0 = objective, w0
        dual = max(dual, bound)
        gaps.append(Certificate(best, dual).relative_gap)
        if gaps[-1] < -1e-6:
            raise ValueError("the masked sums contradict each other: a site sent other numbers than it should")
        report(t + 1, gaps[-1])
        V = rotated(_square(V_gram, d), V_sum, m)
        prox = relationship.prox(V.copy(), s * reg_lambda, w0)
        M = _map(V - prox.common, prox.W - prox.common)
        moved2, size2, primal2 = sums.ask("move", np.concatenate([[float(keep)], prox.common, M.ravel()])).tolist()
        penalty, w0 = prox.penalty, prox.common
        if gaps[-1] <= settings.tol:
            break
        if t >= 1 and changes < MAX_STEP_CHANGES:
            lengths = [math.sqrt(max(square, 0.0)) for square in (moved2, size2, turned2, slope2, primal2, u2)]
            change = step_change(_change(t, s, *lengths), s, longest_step)
            changes += change != 1.0
            s *= change
    if not math.isfinite(best):
        raise ValueError("no round of the masked sums gave a finite objective")
    return np.append(best_w0, 0.0), Certificate(best, dual), gaps


def _change(t: int, s: float, moved: float, size: float, turned: float, slope: float, primal: float, u: float) -> float:
    """The factor for the step size, as in joint splitting."""
    slope = max(slope, 1e-300)
    if is_straight(moved, size, turned, slope):
        return STRIDE
    if t == 1 or t % 2:
        return 1.0
    primal, dual = primal / max(u, size, 1e-300), moved / (s * slope)
    return float(np.clip(_SHARE * (dual / primal) ** _POWER, 0.2, 5.0)) if primal > 0 and dual > 0 else 1.0


def _sharpened(accuracy: float, gaps: Sequence[float]) -> float:
    if len(gaps) < 5 or gaps[-1] < 0.8 * gaps[-5]:
        return accuracy
    return max(0.5 * accuracy, 1e-4)


def _square(upper: np.ndarray, d: int) -> np.ndarray:
    A = np.zeros((d, d))
    A[np.triu_indices(d)] = upper
    return A + np.triu(A, 1).T


def _map(V: np.ndarray, W: np.ndarray) -> np.ndarray:
    """M with W = V M, for W with the singular vectors of V."""
    left, s, right = np.linalg.svd(V, full_matrices=False)
    clear = s > 1e-9 * max(float(s[0]), 1e-300)
    return np.asarray((right[clear].T / s[clear]) @ (left[:, clear].T @ W))


class MasksCoordinator(CoordinatorHalf):
    """Fits the model from masked sums. The weights of the tasks are known only if the study publishes them; else they
    are zero here, and the model is not given to anybody."""

    def __init__(self, study: Study, side: CoordinatorSide):
        self._study, self._side = study, side
        self._sums = MaskedSums(study, side.sites)

    def prepare(self, rows: int) -> PreparedProblem:
        """From masked sums; the numbers of rows that single sites tell are not the true ones."""
        report = self._side.report
        total = self._sums.rows()
        return prepare_from_sums(self._study, total, self._sums.ask_all, report, "adding up masked statistics")

    def fit(self, model: Any, problem: Problem, owner: np.ndarray) -> Outcome:
        study = self._study
        coordinates = problem.coordinates
        assert coordinates is not None
        m, width = len(owner), len(coordinates.x_centre) + 1
        common, lam = 0.0 if m == 1 else (study.fit.common or (1.0,))[0], study.fit.reg_lambda[0]
        settings = Settings(tol=study.fit.tolerance, seed=study.fit.seed)
        ridge = model.intercept_ridge(coordinates)
        w0, certificate, gaps = fit_masked(self._sums, width - 1, lam, common, ridge, settings, self._report)
        W = self._weights(owner, width)
        covariance, ones = Learned().update((W - w0)[:, :-1]), np.ones(m)
        dual, converged = DualPoint(np.zeros_like(W), 0.0, 0.0, certificate.dual), gaps[-1] <= settings.tol
        outcome = Outcome(W, w0, covariance, certificate, dual, [], converged, "masked splitting", ones, ones)
        warn_unless_converged(outcome, settings)
        model.set_outcome(replace(problem, strengths=Strengths(lam, common)), outcome)
        model.n_rounds_ = len(gaps)
        return outcome

    def _report(self, done: int, gap: float) -> None:
        self._side.report("fitting all rows", 0.0, f"round {done}, relative gap {gap:.2%}", round=done, gap=gap)

    def _weights(self, owner: np.ndarray, width: int) -> np.ndarray:
        """The weights of all tasks, if the study gives them to the coordinator; else zeros."""
        study, W = self._study, np.zeros((len(owner), width))
        if study.results.coordinator == "weights":
            requests = {k: Publish(study=study.hash) for k in np.unique(owner).tolist()}
            for k, answer in self._side.sites.ask(requests).items():
                if not preparation.are_finite(answer.weights, W[owner == k].shape):
                    raise ValueError("a site published weights that do not fit the study")
                W[owner == k] = answer.weights
        return W
