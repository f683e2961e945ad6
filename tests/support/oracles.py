"""Optima by cvxpy, which the solvers of the library are compared with."""

from collections.abc import Sequence
from typing import Any

import cvxpy as cp


def optimum(objective: Any, constraints: Sequence[Any] = (), accuracy: float = 1e-7) -> float:
    """The optimum of `cp.Minimize(...)` or `cp.Maximize(...)`; the variables get their values.

    By default CLARABEL wants 1e-8, which it does not reach for every problem on every kind of CPU.
    """
    problem = cp.Problem(objective, list(constraints))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=accuracy, tol_gap_rel=accuracy, tol_feas=accuracy)
    assert problem.status == cp.OPTIMAL
    return float(problem.value)
