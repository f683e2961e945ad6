"""Settings of the solver. `Settings()` is the default; `Settings.paper(...)` is the algorithm of the paper."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dmtrl.numerics.checks import is_number, is_whole, require

CHOICES = {
    "method": ("auto", "splitting", "dual"),
    "local_solver": ("auto", "sdca", "newton", "gram"),
    "sampling": ("shuffled", "uniform"),
    "rho": ("paper", "spectral"),
}
_MINIMA = {"max_rounds": 1, "max_passes": 1, "w_rounds": 1, "seed": 0}  # of integers
_NUMBERS = ["tol", "w_tol", "relaxation", "eta", "local_accuracy", "smoothing", "smoothing_decay", "smoothing_floor"]


@dataclass(frozen=True)
class Settings:
    """Settings of the solver.

    Parameters
    ----------
    tol : float, default=1e-3
        The run stops when the relative joint gap is at most `tol`.
    max_rounds : int, default=1000
        Maximum number of rounds.
    seed : int, default=0
        Seed of the row order and of folds that workers draw.
    method : {"auto", "splitting", "dual"}, default="auto"
        How the coordinator turns B into W: joint splitting (docs/math.md section 6), or the paper's dual alternation.
    local_solver : {"auto", "sdca", "newton", "gram"}, default="auto"
        What a worker runs in a round.
    sampling : {"shuffled", "uniform"}, default="shuffled"
        Order of coordinate steps: shuffled passes, or rows drawn uniformly.
    steps : int or tuple of int, default=None
        Coordinate steps (H) of each task, or of each of its shards, in a round: one number, or one per task. None means
        passes over the rows until `local_accuracy` is reached.
    max_passes : int, default=100
        Maximum number of passes over the rows of a unit in a round, if `steps` is None.
    local_accuracy : float, default=0.05
        The local gap of a round aims at this share of the last certified gap.
    relaxation : float, default=1.6
        Relaxation of the splitting, between 0 and 2.
    initial_step : float, default=None
        First step size of the splitting. None means one derived from lambda and the data.
    eta : float, default=1.0
        Aggregation parameter of dual alternation, in (0, 1].
    rho : {"paper", "spectral"}, default="spectral"
        Bound of the coupling between workers in dual alternation.
    w_rounds : int, default=10
        Maximum number of rounds (T) in a W-step.
    w_tol : float, default=0.0
        A W-step ends when its relative gap is at most `w_tol`.
    omega_steps : int, default=None
        The run ends after this many Omega-steps (P). None means no limit.
    smoothing : float, default=0.3
        Epsilon of the first Omega-step, relative to the largest singular value of W.
    smoothing_decay : float, default=0.9
        Factor on epsilon from one Omega-step to the next.
    smoothing_floor : float, default=1e-7
        The smallest epsilon.
    """

    tol: float = 1e-3
    max_rounds: int = 1000
    seed: int = 0
    method: str = "auto"
    local_solver: str = "auto"
    sampling: str = "shuffled"
    steps: int | tuple[int, ...] | None = None
    max_passes: int = 100
    local_accuracy: float = 0.05
    relaxation: float = 1.6
    initial_step: float | None = None
    eta: float = 1.0
    rho: str = "spectral"
    w_rounds: int = 10
    w_tol: float = 0.0
    omega_steps: int | None = None
    smoothing: float = 0.3
    smoothing_decay: float = 0.9
    smoothing_floor: float = 1e-7

    def __post_init__(self) -> None:
        for field in fields(self):  # plain numbers, which a checkpoint can hold
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            require(value in allowed, name, f"one of {', '.join(allowed)}", value)
        for name in _NUMBERS:
            value = getattr(self, name)
            require(is_number(value) and np.isfinite(value), name, "a finite number", value)
        require(0 < self.relaxation < 2, "relaxation", "between 0 and 2", self.relaxation)
        require(0 < self.eta <= 1, "eta", "in (0, 1]", self.eta)
        require(0 < self.smoothing_decay <= 1, "smoothing_decay", "in (0, 1]", self.smoothing_decay)
        for name in ("tol", "w_tol", "smoothing", "smoothing_floor"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        require(self.tol < 1, "tol", "below 1, the relative gap of any model", self.tol)
        require(self.local_accuracy > 0, "local_accuracy", "positive", self.local_accuracy)
        for name, minimum in _MINIMA.items():
            value = getattr(self, name)
            require(is_whole(value) and value >= minimum, name, f"an integer of at least {minimum}", value)
        omega, steps, initial = self.omega_steps, self.steps, self.initial_step
        ok = omega is None or (is_whole(omega) and omega >= 1)
        require(ok, "omega_steps", "None or a positive integer", omega)
        each = steps if isinstance(steps, tuple | list) else (1 if steps is None else steps,)
        ok = all(is_whole(one) and one >= 1 for one in each)
        require(ok, "steps", "None, a positive integer, or one positive integer per task", steps)
        ok = initial is None or (is_number(initial) and 0 < initial < np.inf)
        require(ok, "initial_step", "None or positive", initial)

    @classmethod
    def paper(
        cls,
        *,
        T: int = 10,
        P: int = 10,
        H: int | tuple[int, ...] | None = None,
        eta: float = 1.0,
        tol: float = 0.0,
        seed: int = 0,
        **options: Any,
    ) -> "Settings":
        """Settings of Algorithms 1 and 2 of the paper.

        Parameters
        ----------
        T : int, default=10
            Rounds in each W-step.
        P : int, default=10
            Number of Omega-steps.
        H : int or tuple of int, default=None
            Uniform coordinate steps in a round: one number, or one per task. None means one step per row.
        eta : float, default=1.0
            Aggregation parameter, in (0, 1].
        tol : float, default=0.0
            The run stops early when the relative joint gap is at most `tol`.
        seed : int, default=0
            Seed of the row order and of folds that workers draw.
        **options : object
            Other fields of Settings, which take precedence.
        """
        fixed: dict[str, Any] = {
            "method": "dual",
            "local_solver": "sdca",
            "sampling": "uniform",
            "max_passes": 1,
            "steps": H,
            "eta": eta,
            "rho": "paper",
            "w_rounds": T,
            "omega_steps": P,
            "max_rounds": T * P,
            "smoothing": 1e-7,
            "smoothing_decay": 1.0,
            "tol": tol,
            "seed": seed,
        }
        return cls(**(fixed | options))


def _plain(value: Any) -> Any:
    """Python's own number, or a tuple of them, for one of numpy's; anything else as it is."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
