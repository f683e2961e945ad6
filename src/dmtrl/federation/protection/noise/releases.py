"""What a site releases: the exact numbers of its tasks, and the noise that they need.

`Releases` belongs to the rows of one site. It keeps no state between releases: the same request on the same rows gives
the same exact numbers.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.noise.accounting import sigma_of
from dmtrl.federation.protection.noise.moments import MomentFormat, Noise
from dmtrl.federation.protection.noise.sensitivity import MomentWeights, dual_sensitivity, gap_for, gap_rounding
from dmtrl.federation.protection.worker import first_request
from dmtrl.federation.study.privacy_terms import MOMENTS, ROUNDS, Privacy
from dmtrl.losses import AnyLoss, scalar
from dmtrl.protocol.rounds import Round
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker

GAP_SHARE = 0.05  # of the sensitivity in mode C: what an inexact local solution adds to it
_MOST_ROUNDS = 200  # of coordinate ascent in one release
_LARGEST = 1e3  # entry of a point, relative to the range of the target


@dataclass(frozen=True)
class Exact:
    """The exact numbers of one release, a row for each task, and by how much the replacement of a row can move each."""

    values: np.ndarray
    sensitivity: np.ndarray

    def with_noise(self, mu: float, releases: int, noise: Noise) -> tuple[np.ndarray, np.ndarray]:
        """The noisy numbers, and the standard deviation of the noise of each task, if all releases cost mu."""
        std = np.array([sigma_of(float(size), mu, releases) for size in self.sensitivity])
        return self.values + std[:, None] * noise(self.values.shape), std


def moment_format(privacy: Privacy, loss: AnyLoss, features: int) -> MomentFormat:
    """How moments are released in modes A and B; both sides of the study compute it."""
    varying = privacy.mode != MOMENTS
    weights = MomentWeights(curvature=0.5, cross=math.sqrt(0.5), constant=0.5) if varying else MomentWeights()
    return MomentFormat(features, privacy.row_norm, loss.smoothness, privacy.slope, varying, weights)


def release_size(privacy: Privacy, loss: AnyLoss, features: int) -> int:
    """How many numbers a task releases at a time."""
    return features + 1 if privacy.mode == ROUNDS else moment_format(privacy, loss, features).size


def step_size(privacy: Privacy, loss: AnyLoss) -> float:
    """The step size of mode C, a few times the inverse of the largest curvature; 0 in the other modes."""
    if privacy.mode != ROUNDS:
        return 0.0
    smoothness = loss.smoothness if math.isfinite(loss.smoothness) else 1.0
    return float(4.0 / smoothness / privacy.row_norm**2)


def largest_entry(target: tuple[float, float] | None) -> float:
    """The largest entry of a point at which a site makes a release, for a range of the target (None: classes)."""
    low, high = target or (-1.0, 1.0)
    return _LARGEST * max(1.0, high - low)


class Releases:
    """The releases of the tasks of one site. `blocks`: rows that are clipped already, without sample weights. `label`:
    a bound of the absolute values of their targets, which must not be read from the data."""

    def __init__(self, privacy: Privacy, loss: AnyLoss, blocks: Blocks, label: float = 1.0):
        self._privacy, self._loss, self._blocks, self._label = privacy, loss, blocks, label
        self._rows = np.diff(blocks.starts)

    @cached_property
    def _worker(self) -> Worker:
        return Worker(self._blocks, self._loss)

    def exact(self, point: np.ndarray, step: float) -> Exact:
        """The release at a point, which is a row of weights for each task: where slope and curvature are taken or, in
        mode C, the centre of the proximal step of size `step`."""
        return self._dual_vectors(point, step) if self._privacy.mode == ROUNDS else self._moments(point)

    def _moments(self, point: np.ndarray) -> Exact:
        blocks, loss = self._blocks, self._loss
        form, values = moment_format(self._privacy, loss, blocks.X.shape[1]), []
        for i, w in enumerate(point):
            rows = slice(blocks.starts[i], blocks.starts[i + 1])
            X, y = blocks.X[rows], blocks.y[rows].astype(float)
            z = X @ w[:-1] + w[-1]
            slope, curvature = _derivatives(loss, z, y)
            values.append(form.vector(X, curvature, slope))
        return Exact(np.array(values), np.array([form.sensitivity(int(n)) for n in self._rows]))

    def _dual_vectors(self, centre: np.ndarray, step: float) -> Exact:
        """b of the proximal point of each task, with a duality gap that is verified.

        How large the gap may be, and what rounding can hide of it, follow from the request and the numbers of rows.
        """
        norm = math.hypot(self._privacy.row_norm, 1.0)  # the intercept is one more feature, which is 1
        slope = self._privacy.slope
        own = (1.0 + slope) * (1.0 + slope + self._label + abs(self._loss.param))  # of every loss with bounded slopes
        rounding = gap_rounding(norm, slope, own, self._rows, centre, step)
        allowed = gap_for(GAP_SHARE, norm, slope, self._rows, step) + rounding
        b, gap = self._solve(centre, step, allowed)
        if (gap > allowed).any():
            raise RefusedBySiteError("its local problem could not be solved accurately enough for a private release")
        return Exact(b, dual_sensitivity(norm, slope, self._rows, allowed + rounding, step))

    def _solve(self, centre: np.ndarray, step: float, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """b and the computed duality gap f(u) + f*(-b) + <u, b> at u = c + s b, from dual variables zero. The gap is
        that of b only if it is allowed."""
        self._worker.handle(first_request(self._blocks, Settings(), ridge=None))
        m, target = len(centre), 0.2 * float(allowed.min())
        b, gap, steps = np.zeros_like(centre), np.full(m, np.inf), np.full(m, float(step))
        for number in range(_MOST_ROUNDS):
            # the worker's centre is w - s b (17); it evaluates brackets at w = u before it improves b
            request = Round(round=number, target=target, w=centre + step * b, step=steps, intercept_step=steps)
            improved = self._worker.handle(request)
            gap = np.maximum(improved.bracket_w, 0.0)
            if (gap <= allowed).all():
                break
            b = improved.b
        return b, gap


def _derivatives(loss: AnyLoss, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-l' and l'' at each row, of a smooth loss."""
    slope: np.ndarray = loss.slope(z, y)  # type: ignore[attr-defined]
    if loss.id == scalar.SQUARED:
        return slope, np.ones(len(z))
    if loss.id == scalar.LOGISTIC:
        p = np.abs(slope)
        return slope, p * (1.0 - p)
    return slope, np.where(_curved(loss, z, y), loss.smoothness, 0.0)


def _curved(loss: AnyLoss, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where a piecewise quadratic loss is curved."""
    if loss.id == scalar.SQUARED_HINGE:
        return np.asarray(y * z < 1.0)
    if loss.id == scalar.SMOOTHED_HINGE:
        return np.asarray((y * z < 1.0) & (y * z > 1.0 - loss.param))
    return np.asarray(np.abs(y - z) < loss.param)  # huber
