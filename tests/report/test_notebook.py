"""What notebooks show: HTML that is well formed, escaped, complete up to its limits, and holds the model's numbers."""

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import sklearn

from dmtrl import RFF, MTRLClassifier, MTRLRegressor, MTRLRegressorCV, TaskCovariance, notebook
from dmtrl.estimators.comparison import Comparison
from dmtrl.estimators.correlations import CorrelationIntervals
from dmtrl.solver.certificate import Certificate

VOID = {"br", "img", "input", "meta", "link", "hr", "path"}


class Page(HTMLParser):
    """Cells, texts and colours of a piece of HTML; fails if a tag is closed out of order or left open."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.words: list[str] = []
        self.colours: list[str] = []
        self.feed(content)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
            style = dict(attrs).get("style") or ""
            self.colours += [part.removeprefix("background:") for part in style.split(";") if "background" in part]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(60, 3)), np.repeat(["a<b>", "b & c", "c"], 20)
    return X, X[:, 0] * np.where(tasks == "c", -1, 1) + 0.1 * rng.normal(size=60), tasks


@pytest.fixture(scope="module")
def model() -> MTRLRegressor:
    X, y, tasks = rows()
    return MTRLRegressor(reg_lambda=0.01).fit(X, y, tasks=tasks)


def test_a_fitted_model_shows_its_certificate_and_correlations(model: MTRLRegressor) -> None:
    shown = model._repr_html_()
    page = Page(shown[: shown.index("<details>")] + "</div>")
    assert str(model.certificate_) in page.cells
    assert {"a<b>", "b & c", "c"} <= set(page.cells), "names are escaped, not interpreted"
    values = np.asarray(model.task_correlation_)
    assert {f"{value:.2f}" for value in values.ravel()} <= set(page.cells)
    assert "reg_lambda" in shown[shown.index("<details>") :], "scikit-learn's diagram lists the parameters"


def test_ipython_receives_it_unless_text_is_wanted(model: MTRLRegressor) -> None:
    bundle = model._repr_mimebundle_()
    assert bundle["text/plain"] == repr(model)
    assert str(model.certificate_) in bundle["text/html"]
    with sklearn.config_context(display="text"):
        assert set(model._repr_mimebundle_(include=None, exclude=None)) == {"text/plain"}


def test_an_unfitted_model_shows_its_parameters_only() -> None:
    shown = MTRLRegressorCV(max_rounds=77)._repr_html_()
    assert "77" in shown
    assert "nothing can be below" not in shown


def test_classes_are_listed_and_many_tasks_have_no_heat_map() -> None:
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(notebook.MAX_CELLS + 1), 4)
    X, y = rng.normal(size=(len(tasks), 2)), np.tile(["no", "yes"], len(tasks) // 2)
    shown = MTRLClassifier().fit(X, y, tasks=tasks)._repr_html_()
    assert "no, yes" in shown
    assert "Task correlation" not in shown


def test_certificates() -> None:
    cells = Page(Certificate(2.0, 1.9)._repr_html_()).cells
    assert {"2", "1.9", "5.00% of the best possible"} <= set(cells)
    assert "no bound is known yet" in Page(Certificate(2.0, -np.inf)._repr_html_()).cells


def comparison(m: int) -> Comparison:
    errors = np.arange(3 * m, dtype=float).reshape(3, m)
    errors[:, -1] = np.nan
    return Comparison(np.array([f"<{i}>" for i in range(m)]), *errors, np.arange(m) == 1, "squared error")


def test_comparisons() -> None:
    page = Page(comparison(3)._repr_html_())
    assert page.cells == [
        "task", "together", "alone", "pooled", "",
        "<0>", "0", "3", "6", "", "<1>", "1", "4", "7", "sharing hurts", "<2>", "unknown", "unknown", "unknown", "",
    ]  # fmt: skip
    long = Page(comparison(notebook.MAX_ROWS + 5)._repr_html_())
    assert "5 more rows: call table()" in long.words
    assert f"<{notebook.MAX_ROWS - 1}>" in long.cells
    assert f"<{notebook.MAX_ROWS}>" not in long.cells


def test_intervals_are_coloured_only_where_they_exclude_zero() -> None:
    low, high = np.array([[1.0, -0.5], [-0.5, 1.0]]), np.array([[1.0, 0.5], [0.5, 1.0]])
    page = Page(CorrelationIntervals(low, high, low, 0.9)._repr_html_())
    assert "-0.50 to 0.50" in page.cells
    transparent = [colour.endswith(" 0.00)") for colour in page.colours]
    assert transparent == [False, True, True, False]


def test_related_tasks_and_covariances(model: MTRLRegressor) -> None:
    found = model.related("a<b>")
    cells = Page(found._repr_html_()).cells
    assert cells[:2] == ["task", "correlation"]
    assert [cells[i] for i in (2, 4)] == ["b & c", "c"], "strongest first, the most opposed last"
    cells = Page(TaskCovariance.from_dense(np.array([[1.0, -0.5], [-0.5, 1.0]]))._repr_html_()).cells
    assert cells.count("-0.50") == 2


def test_blue_means_alike_and_orange_opposed() -> None:
    page = Page(notebook.heat_map(np.array([[1.0, -1.0], [-1.0, 1.0]]), ["p", "q"]))
    assert [notebook.ALIKE in colour for colour in page.colours] == [True, False, False, True]
    assert [notebook.OPPOSED in colour for colour in page.colours] == [False, True, True, False]


def test_feature_maps_name_their_features() -> None:
    X, y, tasks = rows()
    mapped = RFF(n_components=5).fit(X)
    assert mapped.get_feature_names_out().tolist() == ["rff0", "rff1", "rff2", "rff3", "rff4"]
    frame: Any = mapped.set_output(transform="pandas").transform(X)
    assert frame.columns.tolist() == mapped.get_feature_names_out().tolist()
    plain = MTRLRegressor(feature_map=RFF(n_components=5)).fit(X, y, tasks=tasks)
    with sklearn.config_context(transform_output="pandas"):
        framed = MTRLRegressor(feature_map=RFF(n_components=5)).fit(X, y, tasks=tasks)
        assert np.array_equal(framed.predict(X, tasks=tasks), plain.predict(X, tasks=tasks))
    assert np.array_equal(framed.coef_, plain.coef_)
