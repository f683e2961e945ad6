"""`Problem`: everything that decides what is minimised. `Execution` (execution.py) decides where and how."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmtrl.data.coordinates import Coordinates
from dmtrl.data.sources import SourcePlan
from dmtrl.data.task_data import TaskData
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.numerics.checks import require
from dmtrl.relationship import FreeIntercept, Relationship, get_relationship
from dmtrl.relationship.base import check_kappa, check_tau
from dmtrl.solver.outcome import Outcome, StartPoint
from dmtrl.solver.shared_fit import SharedFit
from dmtrl.solver.task_weights import check_task_weight

LINEAR = "linear"  # a shared part that is fitted first


@dataclass(frozen=True)
class Strengths:
    """All strengths of a problem.

    Parameters
    ----------
    reg_lambda : float
        Strength of the regularisation.
    common : float, default=0.0
        Strength of a component that all tasks share, in units of 1/m: 1 makes it as strong as the average task's own
        part, whose variance is 1/m because Sigma has trace one.
    own : float, default=0.0
        Strength of a part of each task's weights that is not related to other tasks, in units of 1/m like `common`. It
        keeps what the relationship would shrink away; with a large value each task is learned alone.
    level : float, default=None
        Strength of the levels of the tasks around the shared part, in rows: a task with n rows has its level shrunk by
        n / (n + level) for the squared loss. None means estimated with the shared part, infinity no levels. Only used
        with a shared part. There, an infinite `reg_lambda` means no deviations but the levels.
    """

    reg_lambda: float
    common: float = 0.0
    own: float = 0.0
    level: float | None = None

    def __post_init__(self) -> None:
        lam, level = self.reg_lambda, self.level
        require(
            _is_positive(lam) or lam == np.inf, "reg_lambda", "positive and finite, or infinite with a shared part", lam
        )
        require(level is None or _is_positive(level) or level == np.inf, "level", "None, or positive", level)
        values = float(lam), check_tau(self.common), check_kappa(self.own), None if level is None else float(level)
        for name, value in zip(("reg_lambda", "common", "own", "level"), values, strict=True):
            object.__setattr__(self, name, value)  # plain floats, which a checkpoint can hold


@dataclass(frozen=True)
class Intercept:
    """Every task has an intercept outside the relationship, which carries only a ridge: one number, or one per task. It
    is the last column of the weights; the rows have no column for it. `shared`: all tasks have the same one.
    `per_row`: the ridge is in rows, so that a task with few rows is shrunk more (52)."""

    ridge: float | np.ndarray
    shared: bool = False
    per_row: bool = False

    def __post_init__(self) -> None:
        ridge = self.ridge
        several = isinstance(ridge, np.ndarray) and ridge.ndim == 1
        fits = _is_positive(ridge) or (several and bool((np.isfinite(ridge) & (ridge > 0)).all()))
        require(fits, "intercept_ridge", "None, or positive and finite", ridge)


@dataclass(frozen=True)
class Tasks:
    """The tasks of a model: those of its problem, and those that are left out because they have a single class."""

    names: np.ndarray
    used: np.ndarray  # numbers of the tasks in the problem
    constant: np.ndarray  # score of each task if it is left out; with k > 2 classes (m, k)
    classes: np.ndarray | None = None  # sorted class labels; None for regression
    seen: np.ndarray | None = None  # (m, k): whether a task has a class; None for regression
    row_counts: np.ndarray | None = None  # number of rows of each task, where it is known

    @property
    def outputs(self) -> int:
        """Scores of a row: one, or one for each of more than two classes."""
        return 1 if self.classes is None or len(self.classes) == 2 else len(self.classes)

    @property
    def seen_in_problem(self) -> np.ndarray:
        """Whether each task in the problem has each class."""
        assert self.seen is not None, "a problem with more than two classes says which of them its tasks have"
        return self.seen[self.used]


@dataclass(frozen=True)
class Problem:
    """What is minimised: tasks and rows, losses, relationship, strengths and weights. `Problem.of` makes one from data.

    Splits of a cross-validation travel with the rows, in `TaskData.splits`.

    Parameters
    ----------
    data : TaskData, SourcePlan or int
        Rows in this process, a plan of sources that each worker reads itself, or the number of tasks where the workers
        of a running engine hold them already.
    losses : Loss, CustomLoss or list of them
        One loss for all tasks, or one per task.
    strengths : Strengths
        Lambda and the strengths of the common and own parts.
    relationship : str, array, sparse matrix, TaskCovariance or Relationship, default="learned"
        "learned", "independent", "shared", a covariance, the adjacency of a graph, or a Relationship.
    task_weight : float or ndarray of shape (m,), default=0.0
        The exponent of the task sizes, or the weights of the tasks themselves.
    intercept : Intercept, default=None
        The intercepts of the tasks. None means no intercept.
    shared : "linear" or SharedFit, default=None
        What all tasks share is fitted first, or given, and its score is added to the offsets of the rows. The problem
        is then about deviations from it, and every task has an intercept, its level, whatever `intercept` says. Where
        the loss has kinks or there are too many features (`can_fit_shared`), "linear" means None.
    start : StartPoint, default=None
        Weights from which to start.
    numbers : ndarray of int, default=None
        Numbers of the tasks in the problem from which this one was restricted. None means all tasks, in order.
    tasks : Tasks, default=None
        The tasks of the model that the solution becomes. Estimators need it, the solver does not.
    coordinates : Coordinates, default=None
        The way from the caller's rows to those of the problem, for estimators.
    feature_map : transformer, default=None
        The fitted feature map that the rows have passed through, for estimators.
    """

    data: TaskData | SourcePlan | int
    losses: AnyLoss | list[AnyLoss]
    strengths: Strengths
    relationship: Any = "learned"
    task_weight: float | np.ndarray = 0.0
    intercept: Intercept | None = None
    shared: str | SharedFit | None = None
    start: StartPoint | None = None
    numbers: np.ndarray | None = None
    tasks: Tasks | None = None
    coordinates: Coordinates | None = None
    feature_map: Any = None

    @classmethod
    def of(
        cls,
        data: TaskData | SourcePlan,
        *,
        loss: str | AnyLoss | Sequence[str | AnyLoss],
        reg_lambda: float,
        common: float = 0.0,
        own: float = 0.0,
        relationship: Any = "learned",
        task_weight: str | float = "equal",
        intercept_ridge: float | np.ndarray | None = None,
        shared: str | SharedFit | None = None,
        level: float | None = None,
        start: Outcome | StartPoint | None = None,
    ) -> "Problem":
        """Describe a problem.

        Parameters
        ----------
        data : TaskData or SourcePlan
            Rows in this process, or a plan of sources that each worker reads itself.
        loss : str, Loss, CustomLoss or sequence of them
            One loss for all tasks, or one per task.
        reg_lambda, common, own : float
            The strengths, as in `Strengths`.
        relationship : str, array, sparse matrix, TaskCovariance or Relationship, default="learned"
            "learned", "independent", "shared", a covariance, the adjacency of a graph, or a Relationship.
        task_weight : {"equal", "rows"} or float, default="equal"
            How much a task counts in the objective. "equal" is the problem of the paper: the mean loss of each task
            counts the same. With "rows" every row counts the same. A number gamma between 0 (equal) and 1 (rows) gives
            a task with n rows a weight proportional to n^gamma, with mean one over the tasks. With sample weights, n is
            their sum.
        intercept_ridge : float or ndarray of shape (m,), default=None
            Give every task an intercept that stays outside the relationship and carries only this ridge, or the ridge
            of its task. It is the last column of the weights; the rows have no column for it. None means no intercept.
        shared : "linear" or SharedFit, default=None
            Fit what all tasks share first, or use what is given; the weights are deviations from it.
        level : float, default=None
            Strength of the levels around the shared part, as in `Strengths`.
        start : Outcome or StartPoint, default=None
            Weights from which to start.

        Returns
        -------
        Problem
        """
        if not hasattr(data, "sources"):
            raise TypeError(f"data must be a TaskData or a SourcePlan, got {type(data).__name__}")
        return cls(
            data,
            losses_of(loss, data.m),
            Strengths(reg_lambda, common, own, level),
            relationship,
            check_task_weight(task_weight),
            None if intercept_ridge is None else Intercept(intercept_ridge),
            shared,
            None if start is None else _checked_start(start, data.m),
        )

    def __post_init__(self) -> None:
        known = self.shared is None or isinstance(self.shared, SharedFit) or self.shared == LINEAR
        require(known, "shared", f"None, {LINEAR!r} or a SharedFit", self.shared)
        finite = self.shared is not None or np.isfinite(self.strengths.reg_lambda)
        require(finite, "reg_lambda", "positive and finite without a shared part", self.strengths.reg_lambda)

    @property
    def m(self) -> int:
        """Number of tasks."""
        return self.data if isinstance(self.data, int) else self.data.m

    @property
    def outputs(self) -> int:
        """Scores of a row: one, or one for each class."""
        return self.losses[0].outputs if isinstance(self.losses, list) else self.losses.outputs

    @property
    def names(self) -> list[str]:
        """Task names, for messages."""
        return [] if isinstance(self.data, int) else [str(name) for name in self.data.names]

    @property
    def splits(self) -> np.ndarray | None:
        """The splits that came with the rows."""
        return getattr(self.data, "splits", None)

    def regulariser(self) -> Relationship:
        """Return the relationship with the common and own parts and the intercepts."""
        strengths, m = self.strengths, self.m
        relationship = get_relationship(self.relationship, m, strengths.common / m, strengths.own / m)
        if self.intercept is None:
            return relationship
        ridge = self.intercept.ridge
        require(np.shape(ridge) in ((), (m,)), "intercept_ridge", f"one number, or one for each of {m} tasks", ridge)
        weight = ridge / strengths.reg_lambda if isinstance(ridge, np.ndarray) else float(ridge / strengths.reg_lambda)
        return FreeIntercept(relationship, weight, self.intercept.shared, self.outputs, None, self.intercept.per_row)

    def check_divisible(self) -> None:
        """Raise ValueError if tasks cannot be left out of the problem."""
        if hasattr(self.relationship, "prox") and not hasattr(self.relationship, "only"):
            raise ValueError(
                f"on_lost='go_on' leaves tasks out, but {type(self.relationship).__name__} cannot be restricted to "
                "some tasks; give it a method only(tasks) that returns the relationship of these tasks"
            )

    def only(self, tasks: np.ndarray) -> "Problem":
        """Return the same problem for these tasks.

        Parameters
        ----------
        tasks : ndarray of int
            Task numbers.
        """
        assert not isinstance(self.data, int)
        losses, relationship, weight, intercept = self.losses, self.relationship, self.task_weight, self.intercept
        if intercept is not None and isinstance(intercept.ridge, np.ndarray):
            intercept = replace(intercept, ridge=intercept.ridge[tasks])
        if hasattr(relationship, "only"):
            relationship = relationship.only(tasks)
        elif hasattr(relationship, "tocsr"):
            relationship = relationship.tocsr()[tasks][:, tasks]
        elif not isinstance(relationship, str):
            relationship = np.asarray(relationship)[np.ix_(tasks, tasks)]
        return replace(
            self,
            data=self.data.only(tasks),
            losses=[losses[i] for i in tasks] if isinstance(losses, list) else losses,
            relationship=relationship,
            task_weight=weight[tasks] if isinstance(weight, np.ndarray) else weight,
            intercept=intercept,
            shared=self.shared.only(tasks) if isinstance(self.shared, SharedFit) else self.shared,
            start=None if self.start is None else StartPoint(self.start.W[tasks], self.start.common),
            numbers=(np.arange(self.m) if self.numbers is None else self.numbers)[tasks],
        )


def losses_of(loss: str | AnyLoss | Sequence[str | AnyLoss], m: int) -> AnyLoss | list[AnyLoss]:
    """The `loss` argument: one loss, or a list with one per task."""
    if isinstance(loss, list | tuple):
        if len(loss) != m:
            raise ValueError(f"got {len(loss)} losses for {m} tasks; give one for all, or one per task")
        found = [get_loss(one) for one in loss]
        if len({one.outputs for one in found}) > 1:
            raise ValueError("all losses must have the same number of classes")
        return found
    return get_loss(loss)  # type: ignore[arg-type]


def _checked_start(start: Outcome | StartPoint, m: int) -> StartPoint:
    """The `start` argument: finite weights (m, d) and the common part (d,)."""
    if not hasattr(start, "W") or not hasattr(start, "common"):
        raise TypeError(f"start must be an Outcome or a StartPoint, got {type(start).__name__}")
    W, common = np.asarray(start.W, dtype=float), np.asarray(start.common, dtype=float)
    if W.ndim != 2 or len(W) != m or common.shape != W.shape[1:]:
        raise ValueError(f"start must have weights of shape ({m}, d) and a common part of shape (d,)")
    if not (np.isfinite(W).all() and np.isfinite(common).all()):
        raise ValueError("start must have finite weights")
    return StartPoint(W, common)


def _is_positive(value: Any) -> bool:
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf" and 0 < value < np.inf
