"""The contract of a loss. `dmtrl.check_loss` tests an implementation against the obligations listed here."""

from typing import Any, Protocol

import numpy as np


class AnyLoss(Protocol):
    """A convex loss l(z, y) of a prediction z and a label y, with what dual coordinate ascent needs.

    Obligations, for every label y:

    - `value` is convex in z, finite, and bounded below.
    - `conjugate(a, y)` is l*(-a) = sup_z -a z - l(z, y): finite inside `domain(y)` and infinite outside.
    - `domain(y)` is the closed interval of all slopes -l'(z, y). It contains zero, where the solvers start.
    - `step(a, z, y, sq)` maximises -l*(-a') - (a' - a) z - sq (a' - a)^2 / 2 over a' in the domain, also for sq = 0.
    - `smoothness` bounds l'' and `lipschitz` bounds |l'|. Either may be infinite.

    `id` and `param` select the compiled functions of a built-in loss. `differentiable` says whether the local solvers
    can use its slope.
    """

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> int: ...
    @property
    def param(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def smoothness(self) -> float: ...
    @property
    def lipschitz(self) -> float: ...
    @property
    def differentiable(self) -> bool: ...
    @property
    def outputs(self) -> int:
        """Scores of a row: one, or one for each class (see `classes`)."""

    @property
    def value(self) -> Any: ...
    @property
    def conjugate(self) -> Any: ...
    @property
    def step(self) -> Any: ...
    @property
    def domain(self) -> Any: ...

    def check_labels(self, y: np.ndarray, where: str) -> None:
        """Raise ValueError if the loss is not defined for a label. `where` starts the message."""

    def __hash__(self) -> int: ...
