"""Where the paper's alternation stalls: School, split 1, squared loss, three ways to the same joint problem.

Run `python -m dmtrl.experiments.stall`; it prints the table of docs/convergence.md. About half a minute.
"""

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dmtrl.coordinator import Outcome
from dmtrl.data import TaskData
from dmtrl.datasets import load_school
from dmtrl.settings import Settings
from dmtrl.solve import NotConvergedWarning, solve

LAMBDAS = (1e-3, 1e-2, 1e-1, 1.0)
# Both alternations solve each local problem exactly, so that what is left is the alternation's own doing.
WAYS = {
    "paper, tiny epsilon": Settings.paper(T=10, P=60, local_solver="gram", rho="spectral", momentum=True),
    "shrinking epsilon": Settings(method="dual", w_rounds=10, max_rounds=600),
    "joint splitting (default)": Settings(),
}


@dataclass(frozen=True)
class Line:
    reg_lambda: float
    way: str
    outcome: Outcome
    test_rmse: float
    seconds: float


def standardised_school(split: int = 0) -> tuple[TaskData, np.ndarray, np.ndarray, np.ndarray]:
    """Training tasks of a split and its test X, y, task; scaled by training rows only, the constant column left
    alone.
    """
    school = load_school()
    train, test = school.splits[split]
    X, y = school.X.astype(float), school.y.astype(float)
    scale = X[train].std(axis=0)
    centre = np.where(scale > 0, X[train].mean(axis=0), 0.0)
    X = (X - centre) / np.where(scale > 0, scale, 1.0)
    y = y - y[train].mean()
    return TaskData.from_long(X[train], y[train], school.task[train]), X[test], y[test], school.task[test]


def compare() -> Iterator[Line]:
    data, X, y, task = standardised_school()
    for reg_lambda in LAMBDAS:
        for way, settings in WAYS.items():
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConvergedWarning)
                outcome = solve(data, loss="squared", reg_lambda=reg_lambda, settings=settings)
            seconds = time.perf_counter() - began
            rmse = float(np.sqrt(np.mean((y - (X * outcome.W[task]).sum(axis=1)) ** 2)))
            yield Line(reg_lambda, way, outcome, rmse, seconds)


def main() -> None:
    print("| lambda | way | rounds | objective | nothing below | relative gap | test RMSE | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for line in compare():
        c = line.outcome.certificate
        print(
            f"| {line.reg_lambda:g} | {line.way} | {len(line.outcome.history)} | {c.primal:.1f} | {c.dual:.1f} "
            f"| {c.relative_gap:.1e} | {line.test_rmse:.3f} | {line.seconds:.2f} |"
        )


if __name__ == "__main__":
    main()
