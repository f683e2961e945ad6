"""Build the page about one fitted model: accuracy and certificate, relations, gains, coefficients, and training.

`model_page` takes an estimator, `page_from_facts` the facts of any other result.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dmtrl.data.labels import plain
from dmtrl.estimators.comparison import Comparison, format_shares
from dmtrl.estimators.correlations import CorrelationIntervals
from dmtrl.report.content import (
    ChartGrid,
    DotPlot,
    HeatMap,
    Item,
    KeyFigures,
    LineChart,
    Page,
    Section,
    Series,
    Table,
    Text,
    slug,
)
from dmtrl.report.model_page import gains, held_out, sites
from dmtrl.report.model_page import relations as related
from dmtrl.report.model_page.facts import ModelFacts, format_bytes, model_facts, percent
from dmtrl.report.model_page.relations import Relations, relations
from dmtrl.report.page import write_page
from dmtrl.report.theme import format_number, literal

MAX_FEATURES = 24  # columns of the heat map of coefficients
MAX_COMMON = 16  # features of the common component
MAX_POINTS = 400  # of a convergence curve


def model_page(
    model: Any,
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    comparison: Comparison | Literal[False] | None = None,
    title: str | None = None,
    sample_weight: Any = None,
    intervals: CorrelationIntervals | None = None,
) -> Page:
    """The page about a fitted model.

    Parameters
    ----------
    model : fitted estimator
    X, y, tasks, sample_weight : optional
        The data of the fit, for the errors together, alone and pooled, and for the baseline.
    comparison : Comparison or False, optional
        The result of `model.compare(X, y, tasks)`. By default it is computed, which takes several fits; False leaves
        it out.
    title : str, optional
        By default, the target and the task column, or the number of tasks.
    intervals : CorrelationIntervals, optional
        The result of `model.correlation_intervals(X, y, tasks)`, to show which relations are clear.
    """
    facts = model_facts(model, X, y, tasks, comparison, sample_weight, intervals)
    return page_from_facts(facts, title or _title(facts))


def write_model_page(
    model: Any,
    path: str | os.PathLike[str],
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    comparison: Comparison | Literal[False] | None = None,
    title: str | None = None,
    sample_weight: Any = None,
    intervals: CorrelationIntervals | None = None,
) -> Path:
    """Write the page about a fitted model as one offline HTML file, and return its path.

    The other parameters are those of `model_page`.
    """
    return write_page(model_page(model, X, y, tasks, comparison, title, sample_weight, intervals), path)


def _title(facts: ModelFacts) -> str:
    if facts.target and facts.task_column:
        return f"{facts.target} by {facts.task_column}"
    return f"Models of {len(facts.names):,} related tasks" if len(facts.names) > 1 else "Model of one task"


def page_from_facts(facts: ModelFacts, title: str) -> Page:
    """The page about a result that is given as facts."""
    found = relations(facts)
    sections = [
        _accuracy(facts),
        related.relation_section(facts, found),
        gains.gain_section(facts),
        _coefficients(facts, found),
        _training(facts),
    ]
    if facts.study is not None:
        sections.insert(1, sites.site_section(facts.study))
    gap = facts.certificate.relative_gap
    proven = f"The objective is proven to be within {percent(gap)} of the optimum."
    if facts.noisy:
        proven = "Noise was added to what left the sites."
        if np.isfinite(gap):
            proven += f" The objective of the noisy problem is within {percent(gap)} of its optimum."
    target = f" of {literal(facts.target)}" if facts.target else ""
    parts = [f"One task with one model{target}."]
    if len(facts.names) > 1:
        parts = [
            f"{len(facts.names):,} tasks, each with its own model{target}.",
            "The models and the relations between tasks were learned together.",
            related.headline(facts, found),
        ]
    parts += [held_out.headline(facts.held_out), gains.headline(facts), proven]
    return Page(title, " ".join(part for part in parts if part), sections, literal(facts.record))


def _accuracy(facts: ModelFacts) -> Section:
    certificate = facts.certificate
    figures = [
        ("proven distance from the optimum", percent(certificate.relative_gap)),
        *_held_out_figures(facts),
        ("tasks", f"{len(facts.names):,}"),
        *([("rows", f"{facts.rows:,}")] if facts.rows is not None else []),
        ("features", f"{facts.features:,}"),
        *([("classes", f"{len(facts.classes):,}")] if facts.classes else []),
        ("loss", facts.loss),
        ("lambda", f"{facts.reg_lambda:.3g}" if isfinite(facts.reg_lambda) else "infinite: no deviations"),
        ("common component", f"{facts.common:.3g}" if facts.common > 0 else "none"),
        *([("own parts", f"{facts.own:.3g}")] if facts.own > 0 else []),
        *([("coefficients", format_shares(facts.shares))] if facts.shares is not None and len(facts.names) > 1 else []),
        *facts.more,
    ]
    rest = "and no task covariance" if facts.relations_learned else "with the given task covariance"
    if np.isinf(certificate.relative_gap):
        text = (
            "**There is no certificate.** Its sums would be further releases about the rows of the sites, and were "
            f"withheld. {_where_to_look(facts)}"
        )
        return Section("Accuracy", [KeyFigures("Key figures of the model", figures[1:]), Text(text)])
    text = (
        f"**The certificate.** The objective of this model is {format_number(certificate.primal)}, and the optimum is "
        f"at least {format_number(certificate.dual)}, so the model is **within {percent(certificate.relative_gap)} of "
        f"the optimum**. This is proven, not estimated: no weights {rest} can do better on this data with the "
        f"{facts.loss} loss and these strengths."
    )
    if facts.noisy:
        text += " The data here are the noisy ones that left the sites, not the rows."
    if certificate.relative_gap > facts.tol:
        text += (
            f"\n\n**The fit stopped before it reached the requested {percent(facts.tol)}.** Scale the features, choose "
            "a stronger lambda, or allow more rounds."
        )
    text += (
        "\n\n**What the certificate does not cover.** It bounds the objective: the sum over tasks of each task's mean "
        "loss on the rows of the fit, times the weight of the task, plus the penalty. It says nothing about the error "
        "on new rows, or about whether "
        f"lambda, the loss and the features were chosen well. {_where_to_look(facts)}"
    )
    if facts.held_out is not None:
        text = f"{held_out.paragraph(facts.held_out)}\n\n{text}"
    tables: list[Item] = []
    if facts.metrics is not None:
        names = [str(plain(name)) for name in facts.metrics.tasks]
        tables = held_out.metric_tables(facts.metrics, facts.comparison, names)
    return Section("Accuracy and certificate", [KeyFigures("Key figures of the model", figures), Text(text), *tables])


def _held_out_figures(facts: ModelFacts) -> list[tuple[str, str]]:
    """Key figures: the held-out error, and that of the baseline."""
    found = facts.held_out
    if found is None:
        return []
    figures = [(f"held-out {found.measure}, mean over {found.over}", found.format(found.error))]
    if found.baseline is not None:
        figures.append((f"baseline: {found.baseline_name}", found.format(found.baseline)))
    return figures


def _where_to_look(facts: ModelFacts) -> str:
    """Where the page shows the error on new rows, or how to measure it."""
    if facts.comparison is not None:
        return f"For the error on held-out rows, see [where sharing helps](#section-{slug(gains.TITLE)})."
    if facts.held_out is not None:
        return "For the error on held-out rows, see above."
    if len(facts.names) == 1:
        return (
            "To measure the error on held-out rows, use `MTRLRegressorCV`, `MTRLClassifierCV`, or `dmtrl fit` without "
            "`--lambda`."
        )
    return "To measure the error on held-out rows, add the data of the fit: `dmtrl report MODEL DATA`."


def _coefficients(facts: ModelFacts, found: Relations) -> Section:
    title = "Which features matter"
    if facts.coef is None:
        mapped = (
            "The features were mapped before the fit (by random Fourier features, splines or another `feature_map`), "
            "so the coefficients do not belong to features of the data and are not shown."
        )
        return Section(title, [Text(mapped)])
    size = np.abs(facts.coef).mean(axis=0)
    order = np.argsort(-size, kind="stable")
    shown = order[:MAX_FEATURES]
    columns = [facts.feature_names[j] for j in shown]
    values = found.means(facts.coef[:, shown])
    limit = float(np.abs(values).max()) or 1.0
    what = "means over each group of tasks" if found.grouped else "one row for each of the tasks"
    some = (
        f"The {len(shown)} of {len(order):,} features with the largest mean absolute coefficient"
        if len(shown) < len(order)
        else "Features sorted by mean absolute coefficient"
    )
    comparable = (
        "The features were standardised before the fit, so their coefficients are comparable."
        if facts.scaled
        else "A coefficient is per unit of its feature, so only features on the same scale are comparable."
    )
    heat = HeatMap(
        "Coefficients",
        [("", values)],
        found.cell_names(facts.names),
        f"Heat map of coefficients, {what}, for {len(shown)} features, such as {', '.join(columns[:5])}.",
        f"{some}; {what}, ordered by similarity as above. Blue raises the "
        f"{'score' if facts.classes else 'prediction'}, orange lowers it. {comparable}",
        limit,
        columns,
        found.short_names(facts.names),
    )
    items: list[Item] = [heat]
    if facts.common_coef is not None:
        items.append(_common(facts))
    common = [] if facts.common_coef is None else ["common component"]
    rows = [
        [facts.feature_names[j], float(size[j])]
        + [float(value) for value in (facts.coef[:, j].mean(), facts.coef[:, j].min(), facts.coef[:, j].max())]
        + ([] if facts.common_coef is None else [float(facts.common_coef[j])])
        for j in order[:200]
    ]
    heads = ["feature", "mean absolute", "mean", "smallest", "largest", *common]
    caption = "" if len(order) <= 200 else f"The first 200 of {len(order):,} features by mean absolute coefficient."
    items.append(Table("Coefficients by feature", heads, rows, caption))
    return Section(title, items)


def _common(facts: ModelFacts) -> DotPlot:
    common = np.asarray(facts.common_coef)
    top = np.argsort(-np.abs(common), kind="stable")[:MAX_COMMON]
    return DotPlot(
        "What all tasks share",
        [facts.feature_names[j] for j in top],
        [("common component", common[top].tolist()), ("zero", [0.0] * len(top))],
        "common component of the coefficient",
        f"Dots of the common component of {len(top)} coefficients, the largest first; the table below has the numbers.",
        caption="The common component is part of the coefficients of every task. It is used to predict new tasks.",
    )


def _training(facts: ModelFacts) -> Section:
    title = "Training"
    if not facts.history:
        return Section(title, [Text("The model has no record of its rounds.")])
    rounds = np.arange(1, len(facts.history) + 1)
    gap = np.array([record["gap"] for record in facts.history], dtype=float)
    seconds = np.cumsum([record["seconds"] for record in facts.history])
    megabytes = np.cumsum([record["bytes_sent"] + record["bytes_received"] for record in facts.history]) / 1e6
    figures = [
        ("rounds", f"{len(rounds):,}"),
        ("seconds", f"{seconds[-1]:.3g}"),
        ("messages", format_bytes(1e6 * megabytes[-1])),
        ("first relative gap", percent(gap[0])),
        ("last relative gap", percent(gap[-1])),
    ]
    # a subset of the rounds, evenly spaced, with the last one
    keep = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), MAX_POINTS)).astype(int))
    charts = [
        LineChart(
            name,
            label,
            "relative gap",
            [Series("relative gap", along[keep].tolist(), gap[keep].tolist())],
            f"The gap falls from {percent(gap[0])} to {percent(gap[-1])} over {along[-1]:.3g} {label}.",
            log_y=True,
            references=_tol_line(facts, gap),
            from_zero=True,
        )
        for name, label, along in (
            ("over rounds", "rounds", rounds),
            ("over time", "seconds", seconds),
            ("over messages", "megabytes sent and received", megabytes),
        )
    ]
    grid = ChartGrid(
        "Convergence",
        charts,
        "Three charts of the proven relative gap: over rounds, over seconds and over megabytes in messages.",
        3,
        "The relative gap is an upper bound on the distance from the optimum. In a round, each worker receives one "
        "message and sends one answer. Rows are never sent.",
    )
    return Section(title, [KeyFigures("Key figures of the training", figures), grid])


def _tol_line(facts: ModelFacts, gap: np.ndarray) -> Sequence[tuple[str, float]]:
    # a line far below every gap would compress the curve
    drawn = gap[np.isfinite(gap) & (gap > 0)]
    return [("tolerance", facts.tol)] if facts.tol > 0 and drawn.size and drawn.min() < 30 * facts.tol else []
