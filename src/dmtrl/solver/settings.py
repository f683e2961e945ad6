"""All the knobs of the solver in one dataclass, with the two presets.

Room: the ground. `Settings()` is the default; `Settings.paper(...)` is Algorithm 1 and 2 of the paper to the letter.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dmtrl.numerics.checks import is_number, is_whole

CHOICES = {
    "method": ("auto", "splitting", "dual"),
    "local_solver": ("auto", "sdca", "newton", "gram"),
    "sampling": ("shuffled", "uniform"),
    "rho": ("paper", "spectral"),
}
_COUNTS = {"max_rounds": 1, "max_passes": 1, "w_rounds": 1, "max_staleness": 0, "seed": 0}  # and the least of each
_NUMBERS = (
    "tol", "w_tol", "relaxation", "eta", "local_accuracy", "smoothing", "smoothing_decay", "smoothing_floor",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    # when to stop
    tol: float = 1e-3  # relative joint gap
    max_rounds: int = 1000
    seed: int = 0
    # how the server turns B into W: joint splitting (docs/math.md section 6), or the paper's dual alternation
    method: str = "auto"
    # what a worker does in a round
    local_solver: str = "auto"
    sampling: str = "shuffled"
    # H, coordinate steps a round of a task (of each shard, if it is cut): one number, or one per task; None: passes
    # until accurate enough
    steps: int | tuple[int, ...] | None = None
    max_passes: int = 100  # the most passes over a unit's rows in a round when steps is None
    local_accuracy: float = 0.05  # a round's local gap aims at this share of the last certified gap
    balance: bool = False  # limit a worker's steps by its measured speed, so that all end a round together
    # 0: rounds in step, all wait for the slowest. Above: every answer counts when it comes, and a worker may be given
    # new weights this many times while another is still at work on older ones
    max_staleness: int = 0
    # splitting
    relaxation: float = 1.6
    initial_step: float | None = None
    # dual alternation
    eta: float = 1.0
    rho: str = "spectral"
    w_rounds: int = 10  # T: rounds in a W-step at most
    w_tol: float = 0.0  # a W-step ends early at this relative W-step gap
    omega_steps: int | None = None  # P: the run ends after this many Omega-steps; None: only by tol or max_rounds
    smoothing: float = 0.3  # epsilon of the Omega-step over the largest singular value of W, at the first Omega-step
    smoothing_decay: float = 0.9
    smoothing_floor: float = 1e-7

    def __post_init__(self) -> None:
        for field in fields(self):  # plain numbers, which a checkpoint can hold
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in _NUMBERS:
            value = getattr(self, name)
            _require(is_number(value) and np.isfinite(value), name, "a finite number", value)
        _require(0 < self.relaxation < 2, "relaxation", "between 0 and 2", self.relaxation)
        _require(0 < self.eta <= 1, "eta", "in (0, 1]", self.eta)
        _require(0 < self.smoothing_decay <= 1, "smoothing_decay", "in (0, 1]", self.smoothing_decay)
        for name in ("tol", "w_tol", "smoothing", "smoothing_floor"):
            _require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        _require(self.local_accuracy > 0, "local_accuracy", "positive", self.local_accuracy)
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            _require(is_whole(value) and value >= least, name, f"at least {least}, a whole number", value)
        _require(isinstance(self.balance, bool), "balance", "True or False", self.balance)
        if self.max_staleness and self.method == "dual":
            raise ValueError("max_staleness needs method='splitting': dual ascent can stall unless steps are in step")
        if self.max_staleness and self.balance:
            raise ValueError(
                "balance=True shares out rounds in step, and max_staleness has none; choose one of the two"
            )
        omega, steps, initial = self.omega_steps, self.steps, self.initial_step
        _require(
            omega is None or (is_whole(omega) and omega >= 1),
            "omega_steps",
            "None or at least 1, a whole number",
            omega,
        )
        each = steps if isinstance(steps, tuple | list) else (1 if steps is None else steps,)
        enough = all(is_whole(one) and one >= 1 for one in each)
        _require(enough, "steps", "None or at least 1, whole numbers", steps)
        _require(
            initial is None or (is_number(initial) and 0 < initial < np.inf),
            "initial_step",
            "None or positive",
            initial,
        )

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
        **knobs: Any,
    ) -> "Settings":
        """Algorithm 1 and 2: P Omega-steps, T rounds before each, H uniform coordinate steps a round (one number,
        or one per task; None: one per row).
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
        return cls(**(fixed | knobs))


def _plain(value: Any) -> Any:
    """Python's own number, or a tuple of them, for one of numpy's; anything else as it is."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _require(ok: bool, name: str, rule: str, value: object) -> None:
    if not ok:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
