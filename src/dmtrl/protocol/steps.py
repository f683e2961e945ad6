"""The arithmetic of proximal steps that the coordinator and the workers share (docs/math.md sections 6 and 10)."""

from dataclasses import dataclass

import numpy as np

AGREED_STIFFNESS = 20.0  # of an intercept on which several units must agree: its step size times the curvature


@dataclass(frozen=True)
class Steps:
    """Step sizes of some units."""

    features: np.ndarray  # of each unit
    intercept: np.ndarray | None = None  # the same for the intercepts, the last columns of weights, if there are any
    ridge: np.ndarray | None = None  # on the intercepts in the local problems; None: they are treated like features
    columns: int = 1  # intercepts of a unit: one, or one for each of its classes

    def only(self, units: slice | np.ndarray) -> "Steps":
        intercept = None if self.intercept is None else self.intercept[units]
        return Steps(self.features[units], intercept, None if self.ridge is None else self.ridge[units], self.columns)

    def times(self, b: np.ndarray) -> np.ndarray:
        """Each row of b times its step size."""
        product: np.ndarray = self.features[:, None] * b
        if self.intercept is not None:
            product[:, -self.columns :] = self.effective_intercept[:, None] * b[:, -self.columns :]
        return product

    @property
    def effective_intercept(self) -> np.ndarray:
        """The step sizes of the intercepts after the ridge is taken into their proximal terms."""
        assert self.intercept is not None
        return self.intercept * self._shrink

    def centre(self, W: np.ndarray, anchor: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The centres of the local problems (17): `anchor` is W, over-relaxed. An intercept has its own centre."""
        C: np.ndarray = anchor - self.times(b)
        if self.intercept is not None and self.ridge is not None:
            C[:, -self.columns :] = W[:, -self.columns :] * self._shrink[:, None]
        return C

    @property
    def _shrink(self) -> np.ndarray:
        assert self.intercept is not None
        return 1.0 / (1.0 + self.intercept * (0.0 if self.ridge is None else self.ridge))
