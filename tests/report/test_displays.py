"""Displays for notebooks: what they draw is what the model says, on axes of one's own or new ones."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dmtrl import ConvergenceDisplay, MTRLClassifier, MTRLRegressor, TaskComparisonDisplay, TaskCorrelationDisplay
from support.model_pages import families, fitted, made_up_comparison

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    from matplotlib import pyplot

    pyplot.close("all")  # of tests before; an old matplotlib warns if switching closes them
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def model() -> MTRLRegressor:
    return fitted(12)


def _words(ax: Any) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def test_correlations_are_drawn_in_the_order_of_similarity(model: MTRLRegressor) -> None:
    display = TaskCorrelationDisplay.from_estimator(model)
    order = display.order_
    dense = np.asarray(model.task_correlation_)
    assert np.array_equal(display.im_.get_array(), dense[np.ix_(order, order)])
    assert _words(display.ax_) == [str(model.tasks_[i]) for i in order]
    assert display.figure_ is display.ax_.figure
    family = families(12)[3][order]
    assert np.count_nonzero(np.diff(family)) == len(set(family)) - 1, "families stand together"
    display.figure_.canvas.draw()


def test_given_axes_and_order_of_the_model(model: MTRLRegressor) -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    display = TaskCorrelationDisplay.from_estimator(model, ax=ax, order=None, colorbar=False)
    assert display.ax_ is ax
    assert display.colorbar_ is None
    assert display.order_.tolist() == list(range(12))
    with pytest.raises(ValueError, match="order must be"):
        display.plot(order="size")
    with pytest.raises(ValueError, match="one row per name"):
        TaskCorrelationDisplay(np.eye(3), ["a", "b"]).plot()


def test_many_labels_are_thinned_and_long_or_strange_ones_are_safe() -> None:
    display = TaskCorrelationDisplay(np.eye(139), [f"school {i}" for i in range(139)]).plot()
    assert 20 <= len(_words(display.ax_)) <= 40
    assert _words(display.plot(max_labels=0).ax_) == []
    strange = TaskCorrelationDisplay(np.eye(2), ["$\\frac{1}{0}$", "x" * 100]).plot()
    strange.figure_.canvas.draw()
    assert _words(strange.ax_)[0] == "$\\frac{1}{0}$"
    assert len(_words(strange.ax_)[1]) == 24


@pytest.mark.parametrize("x", ["rounds", "seconds", "bytes"])
def test_convergence_ends_where_the_fit_ended(model: MTRLRegressor, x: str) -> None:
    display = ConvergenceDisplay.from_estimator(model, x=x, name="ours", color="red")
    along, gap = display.line_.get_data()
    assert gap[-1] == model.history_[-1]["gap"]
    assert len(gap) == model.n_rounds_
    total = {
        "rounds": model.n_rounds_,
        "seconds": sum(record["seconds"] for record in model.history_),
        "bytes": sum(record["bytes_sent"] + record["bytes_received"] for record in model.history_),
    }[x]
    assert along[-1] == pytest.approx(total)
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.get_legend() is not None


def test_convergence_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(ValueError, match="history is empty"):
        ConvergenceDisplay([]).plot()
    with pytest.raises(ValueError, match="x must be one of rounds, seconds, bytes"):
        ConvergenceDisplay([{}]).plot(x="time")


def test_comparison_is_sorted_by_gain_and_marks_hurt_tasks() -> None:
    names = [f"shop {i}" for i in range(100)]
    comparison = made_up_comparison(names)
    display = TaskComparisonDisplay(comparison).plot(max_tasks=21)
    gain = (comparison.alone - comparison.together)[display.order_]
    assert len(gain) == 21
    assert (np.diff(gain) <= 0).all()
    assert gain[0] == (comparison.alone - comparison.together).max()
    assert gain[-1] == (comparison.alone - comparison.together).min()
    assert _words(display.ax_) == [names[i] for i in display.order_]
    rings = display.ax_.collections[-1].get_offsets()
    assert len(rings) == comparison.hurts[display.order_].sum()
    assert "21 of 100" in display.ax_.get_title()


def test_comparison_from_an_estimator_matches_compare() -> None:
    X, y, tasks, _ = families(4, rows=12, d=3)
    model = MTRLClassifier().fit(X, y > 0, tasks=tasks)
    display = TaskComparisonDisplay.from_estimator(model, X, y > 0, tasks, cv=3, pooled=False)
    again = model.compare(X, y > 0, tasks, cv=3)
    drawn = display.ax_.collections[1].get_offsets()[:, 0]
    assert np.asarray(drawn) == pytest.approx(again.together[display.order_])
    assert display.ax_.get_xlabel() == "held-out error rate"


def test_an_unfitted_estimator_is_refused() -> None:
    from sklearn.exceptions import NotFittedError

    for display in (TaskCorrelationDisplay, ConvergenceDisplay):
        with pytest.raises(NotFittedError):
            display.from_estimator(MTRLRegressor())


@pytest.mark.subprocess
def test_the_error_names_matplotlib_which_only_drawing_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, dmtrl; dmtrl.TaskCorrelationDisplay; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'TaskCorrelationDisplay needs matplotlib: pip install "dmtrl\[plot\]"'):
        TaskCorrelationDisplay(np.eye(2)).plot()
