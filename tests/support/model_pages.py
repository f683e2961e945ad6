"""Models for the tests of the page about a model and of the displays: made-up tasks whose families are known."""

from typing import Any

import numpy as np

from dmtrl import MTRLRegressor
from dmtrl.estimators.comparison import Comparison
from dmtrl.report.content import Page, Table, Text


def families(
    m: int, rows: int = 20, d: int = 6, count: int = 3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, y, tasks, and the family of each task: negative for those that are its opposite."""
    rng = np.random.default_rng(seed)
    parents = np.linalg.qr(rng.normal(size=(d, count)))[0].T
    family = (1 + rng.integers(count, size=m)) * rng.choice([-1, 1], size=m)
    W = np.sign(family)[:, None] * parents[np.abs(family) - 1] + 0.05 * rng.normal(size=(m, d))
    task = np.repeat(np.arange(m), rows)
    X = rng.normal(size=(m * rows, d))
    y = (X * W[task]).sum(axis=1) + 0.1 * rng.normal(size=m * rows)
    names = np.array([f"shop {i:0{len(str(m - 1))}d}" for i in range(m)])
    return X, y, names[task], family


def fitted(m: int, **size: Any) -> MTRLRegressor:
    X, y, tasks, _ = families(m, **size)
    return MTRLRegressor(reg_lambda=0.01).fit(X, y, tasks=tasks)


def made_up_comparison(names: Any, seed: int = 0) -> Comparison:
    """Errors of the right shape at no cost; every seventh task is hurt."""
    rng = np.random.default_rng(seed)
    together, alone, pooled = rng.uniform(1, 2, size=(3, len(names)))
    hurts = np.arange(len(names)) % 7 == 0
    return Comparison(np.asarray(names), together + hurts, alone, pooled, hurts, "squared error")


def items(page: Page, kind: type) -> list[Any]:
    return [item for section in page.sections for item in section.items if isinstance(item, kind)]


def words(page: Page) -> str:
    return "\n".join([page.lead, *(item.text for item in items(page, Text))])


def table(page: Page, title: str) -> Table:
    return next(item for item in items(page, Table) if item.title == title)
