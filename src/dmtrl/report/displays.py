"""Plots for notebooks in the style of scikit-learn's displays.

Create them with `from_estimator`; `plot` draws on given or new axes. Drawing needs matplotlib (`dmtrl[plot]`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmtrl.estimators.comparison import Comparison, measure_name
from dmtrl.relationship.similarity import similarity_order
from dmtrl.report.theme import shortened

_AXES = {"rounds": "rounds", "seconds": "seconds", "bytes": "bytes sent and received"}


class _Display:
    ax_: Any
    figure_: Any

    def _axes(self, ax: Any, size: tuple[float, float]) -> Any:
        if ax is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                raise ImportError(f'{type(self).__name__} needs matplotlib: pip install "dmtrl[plot]".') from error
            _, ax = pyplot.subplots(figsize=size, layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        return ax


class TaskCorrelationDisplay(_Display):
    """Heat map of the task correlations, ordered so that related tasks are adjacent.

    Parameters
    ----------
    correlation : array of shape (m, m)
    names : sequence of length m, optional
        The task names. By default, the task numbers.

    Attributes
    ----------
    order_ : ndarray of shape (m,)
        The number of the task in each row of the plot.
    im_ : matplotlib AxesImage
    colorbar_ : matplotlib Colorbar or None
    ax_, figure_ : matplotlib Axes and Figure

    Examples
    --------
    >>> import numpy as np
    >>> from dmtrl import MTRLRegressor, TaskCorrelationDisplay
    >>> rng = np.random.default_rng(0)
    >>> X, shop = rng.normal(size=(60, 3)), np.repeat(["a", "b", "c"], 20)
    >>> model = MTRLRegressor().fit(X, X[:, 0], tasks=shop)
    >>> display = TaskCorrelationDisplay.from_estimator(model)  # doctest: +SKIP
    """

    def __init__(self, correlation: Any, names: Sequence[Any] | None = None):
        self.correlation = correlation
        self.names = names

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **options: Any) -> Self:
        """Plot the task correlations of a fitted estimator.

        Parameters
        ----------
        estimator : MTRLRegressor, MTRLClassifier, MTRLRegressorCV or MTRLClassifierCV
            A fitted estimator.
        ax : matplotlib Axes, default=None
            Axes to draw on. None creates a figure.
        **options : object
            Further arguments of `plot`.

        Returns
        -------
        TaskCorrelationDisplay
        """
        check_is_fitted(estimator)
        names = estimator.tasks_.tolist()
        return cls(estimator.covariance_.correlation(), names).plot(ax, **options)

    def plot(
        self,
        ax: Any = None,
        *,
        order: str | None = "similarity",
        cmap: Any = "RdBu",
        colorbar: bool = True,
        max_labels: int = 40,
    ) -> Self:
        """Draw the heat map. Blue means alike, red means opposed.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None creates a figure.
        order : "similarity" or None, default="similarity"
            Order of the tasks. None means the order of the model.
        cmap : str or matplotlib Colormap, default="RdBu"
            Colours from -1 to 1.
        colorbar : bool, default=True
            Whether to draw a colour bar.
        max_labels : int, default=40
            The largest number of tasks to label. 0 means no labels.

        Returns
        -------
        TaskCorrelationDisplay
        """
        if order not in ("similarity", None):
            raise ValueError(f"order must be 'similarity' or None, got {order!r}")
        values = np.asarray(self.correlation, dtype=float)
        names = [str(name) for name in (range(len(values)) if self.names is None else self.names)]
        if values.ndim != 2 or values.shape != (len(names), len(names)):
            raise ValueError(
                f"correlation must be square with one row per name, got shape {values.shape} and {len(names)} names"
            )
        self.order_ = np.arange(len(values)) if order is None else similarity_order(values)
        side = float(np.clip(0.3 * len(values), 4.0, 9.0))
        ax = self._axes(ax, (side + 1.0, side))
        shown = values[np.ix_(self.order_, self.order_)]
        self.im_ = ax.imshow(shown, vmin=-1, vmax=1, cmap=cmap, interpolation="nearest")
        ticks = np.arange(0, len(values), -(-len(values) // max_labels)) if max_labels > 0 else np.arange(0)
        words = [shortened(names[i], 24) for i in self.order_[ticks]]
        ax.set_xticks(ticks, words, rotation="vertical", fontsize=8, parse_math=False)
        ax.set_yticks(ticks, words, fontsize=8, parse_math=False)
        ax.set_title("Task correlation")
        self.colorbar_ = self.figure_.colorbar(self.im_, ax=ax, shrink=0.8) if colorbar else None
        return self


class ConvergenceDisplay(_Display):
    """The proven relative gap over rounds, seconds or bytes.

    Parameters
    ----------
    history : sequence of dict
        A fitted estimator's `history_`.
    tol : float, optional
        The requested gap, drawn as a line.

    Attributes
    ----------
    line_ : matplotlib Line2D
    ax_, figure_ : matplotlib Axes and Figure
    """

    def __init__(self, history: Sequence[Mapping[str, Any]], tol: float | None = None):
        self.history = history
        self.tol = tol

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **options: Any) -> Self:
        """Plot the rounds of a fitted estimator.

        Parameters
        ----------
        estimator : MTRLRegressor, MTRLClassifier, MTRLRegressorCV or MTRLClassifierCV
            A fitted estimator.
        ax : matplotlib Axes, default=None
            Axes to draw on. None creates a figure.
        **options : object
            Further arguments of `plot`.

        Returns
        -------
        ConvergenceDisplay
        """
        check_is_fitted(estimator)
        return cls(estimator.history_, estimator.tol).plot(ax, **options)

    def plot(self, ax: Any = None, *, x: str = "rounds", name: str | None = None, **line: Any) -> Self:
        """Draw the relative gap.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None creates a figure.
        x : {"rounds", "seconds", "bytes"}, default="rounds"
            Quantity on the horizontal axis.
        name : str, default=None
            Label in the legend.
        **line : object
            Further arguments of matplotlib's `plot`.

        Returns
        -------
        ConvergenceDisplay
        """
        if x not in _AXES:
            raise ValueError(f"x must be one of {', '.join(_AXES)}, got {x!r}")
        if not self.history:
            raise ValueError("the history is empty; there are no rounds to plot")
        along = {
            "rounds": np.arange(1, len(self.history) + 1),
            "seconds": np.cumsum([record["seconds"] for record in self.history]),
            "bytes": np.cumsum([record["bytes_sent"] + record["bytes_received"] for record in self.history]),
        }[x]
        gap = np.array([record["gap"] for record in self.history], dtype=float)
        ax = self._axes(ax, (6.0, 4.0))
        (self.line_,) = ax.plot(along, np.where(gap > 0, gap, np.nan), label=name, **line)
        if self.tol:
            ax.axhline(self.tol, color="0.5", linestyle="--", linewidth=1)
        ax.set(yscale="log", xlabel=_AXES[x], ylabel="proven relative gap", title="Convergence")
        if name is not None:
            ax.legend()
        return self


class TaskComparisonDisplay(_Display):
    """Held-out error of every task learned together, alone and pooled, sorted by gain.

    A ring marks tasks that sharing hurts.

    Parameters
    ----------
    comparison : Comparison
        The result of `model.compare(X, y, tasks)`.

    Attributes
    ----------
    order_ : ndarray
        The number of the task on each line, from the top.
    ax_, figure_ : matplotlib Axes and Figure
    """

    def __init__(self, comparison: Comparison):
        self.comparison = comparison

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        sample_weight: Any = None,
        *,
        cv: int = 5,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Compare with the settings of a fitted estimator, which takes several fits, and plot the result.

        Parameters
        ----------
        estimator : MTRLRegressor, MTRLClassifier, MTRLRegressorCV or MTRLClassifierCV
            A fitted estimator.
        X : {array-like, sparse matrix, data frame} of shape (n, d), or list or dict of (X_i, y_i)
            Rows of the tasks of the model, in any form that `fit` accepts.
        y : array-like of shape (n,) or (n, m), default=None
            Labels, in any form that `fit` accepts.
        tasks : array-like of shape (n,), default=None
            The task label of each row.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows.
        cv : int, default=5
            Number of folds.
        ax : matplotlib Axes, default=None
            Axes to draw on. None creates a figure.
        **options : object
            Further arguments of `plot`.

        Returns
        -------
        TaskComparisonDisplay
        """
        return cls(estimator.compare(X, y, tasks, sample_weight, cv)).plot(ax, **options)

    def plot(self, ax: Any = None, *, max_tasks: int = 60, pooled: bool = True) -> Self:
        """Draw the errors of the tasks.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None creates a figure.
        max_tasks : int, default=60
            The largest number of tasks to draw: those with the largest and the smallest gain.
        pooled : bool, default=True
            Whether to draw the errors of the pooled model.

        Returns
        -------
        TaskComparisonDisplay
        """
        found = self.comparison
        gain = found.alone - found.together
        order = np.argsort(-gain, kind="stable")  # NaN is last
        if len(order) > max_tasks:
            order = np.concatenate([order[: max_tasks - max_tasks // 2], order[len(order) - max_tasks // 2 :]])
        self.order_ = order
        heights = np.arange(len(order))
        ax = self._axes(ax, (7.0, 1.2 + 0.22 * len(order)))
        ax.hlines(heights, found.together[order], found.alone[order], color="0.8", linewidth=2.5, zorder=1)
        styles = {"together": ("o", "C0"), "alone": ("D", "C1"), "pooled": ("s", "C2")}
        for rank, (name, (marker, colour)) in enumerate(list(styles.items())[: 3 if pooled else 2]):
            ax.scatter(
                getattr(found, name)[order], heights, s=32, marker=marker, color=colour, label=name, zorder=5 - rank
            )
        hurt = np.flatnonzero(found.hurts[order])
        if hurt.size:
            ring = {"facecolors": "none", "edgecolors": "black", "label": "hurt by sharing"}
            ax.scatter(found.together[order][hurt], hurt, s=110, zorder=6, **ring)
        ax.set_yticks(heights, [shortened(str(found.tasks[i]), 24) for i in order], fontsize=8, parse_math=False)
        ax.set_ylim(len(order) - 0.5, -0.5)
        some = "" if len(order) == len(gain) else f" ({len(order)} of {len(gain)})"
        ax.set(xlabel=f"held-out {measure_name(found.measure)}", title=f"Tasks by gain from sharing{some}")
        ax.legend()
        return self
