"""Certificates: proven bounds on the distance to the optimum (docs/math.md sections 1 and 5).

The primal is the objective of the model, the dual a lower bound of every objective. Both come from sums that workers
send anyway.
"""

import math
from dataclasses import dataclass

from dmtrl import notebook


@dataclass(frozen=True)
class Certificate:
    """Proven bounds of the optimum: primal >= optimum >= dual.

    Parameters
    ----------
    primal : float
        The objective of the model.
    dual : float
        A lower bound of the objective of every model.
    """

    primal: float
    dual: float

    @property
    def gap(self) -> float:
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        scale = max(abs(self.primal), abs(self.dual))
        if math.isinf(scale):  # nothing is known yet
            return math.inf
        return self.gap / scale if scale > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"objective {self.primal:.6g}, nothing can be below {self.dual:.6g}: "
            f"within {max(self.relative_gap, 0.0):.2%} of the best possible"
        )

    def _repr_html_(self) -> str:
        within = max(self.relative_gap, 0.0)
        rows = [
            ("objective of the model", f"{self.primal:.6g}"),
            ("nothing can be below", f"{self.dual:.6g}"),
            ("within", f"{within:.2%} of the best possible" if math.isfinite(within) else "no bound is known yet"),
        ]
        return notebook.section(notebook.facts(rows))


def scaled_dual(conjugate_of_penalty: float, conjugates: float, conjugates_at_zero: float) -> float:
    """The best dual bound over alpha scaled by c in [0, 1], from sums alone (15).

    By convexity the scaled conjugates are at most the chord between c = 0 and c = 1; for hinge the chord is exact.
    """
    slope = conjugates_at_zero - conjugates
    if slope <= 0:
        c = 0.0
    elif slope >= 2.0 * conjugate_of_penalty:
        c = 1.0
    else:
        c = slope / (2.0 * conjugate_of_penalty)
    return -c * c * conjugate_of_penalty + c * slope - conjugates_at_zero
