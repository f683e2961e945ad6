"""Report room: the page about one fitted model, from top to bottom: what was learned and how sure it is, which tasks
belong together, whom sharing helped, what the models look at, and how the training went.

`model_page` takes an estimator, `page_of` the facts of any other result. The words about relations and gains are in
`relation_section` and `gain_section`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.report import gain_section, held_out, relation_section
from dmtrl.report.content import (
    BarChart,
    ChartGrid,
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
from dmtrl.report.model_facts import ModelFacts, gather, number, percent, size_in_words
from dmtrl.report.page import write_page
from dmtrl.report.relation_section import Relations, relations
from dmtrl.report.theme import literal

MOST_FEATURES = 24  # columns of the heat map of coefficients
MOST_BARS = 16
MOST_POINTS = 400  # of a curve of rounds


def model_page(
    model: Any,
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    comparison: Any = None,
    title: str | None = None,
) -> Page:
    """The page about a fitted model.

    X, y, tasks: the data of the fit, for the errors together, alone and pooled. That takes several fits, unless their
    outcome `model.compare(X, y, tasks)` is handed in as `comparison`, or False to do without. title: None for what is
    known: the target and the task column, or the number of tasks.
    """
    facts = gather(model, X, y, tasks, comparison)
    return page_of(facts, title or _title(facts))


def write_model_page(
    model: Any,
    path: str | os.PathLike[str],
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    comparison: Any = None,
    title: str | None = None,
) -> Path:
    """Write the page about a fitted model as one HTML file that needs no network; the path. As `model_page`."""
    return write_page(model_page(model, X, y, tasks, comparison, title), path)


def _title(facts: ModelFacts) -> str:
    if facts.target and facts.task_column:
        return f"{facts.target} by {facts.task_column}"
    return f"What {facts.tasks:,} tasks have in common" if facts.tasks > 1 else "What one task has learned"


def page_of(facts: ModelFacts, title: str) -> Page:
    found = relations(facts)
    sections = [
        _certainty(facts),
        relation_section.relation_section(facts, found),
        gain_section.gain_section(facts),
        _coefficients(facts, found),
        _training(facts),
    ]
    proven = f"Proven to be within {percent(facts.certificate.relative_gap)} of the best possible objective."
    count = f"{facts.tasks:,} tasks, one model each" if facts.tasks > 1 else "One task, one model"
    target = f" of {literal(facts.target)}" if facts.target else ""
    lead = " ".join(
        part
        for part in (
            f"{count}{target}." + (" Learned together with how the tasks are related." if facts.tasks > 1 else ""),
            relation_section.headline(facts, found) if facts.tasks > 1 else "",
            held_out.headline(facts.held_out),
            gain_section.headline(facts),
            proven,
        )
        if part
    )
    return Page(title, lead, sections, literal(facts.record))


def _certainty(facts: ModelFacts) -> Section:
    certificate = facts.certificate
    figures = [
        ("proven within", percent(certificate.relative_gap)),
        *_prediction(facts),
        ("tasks", f"{facts.tasks:,}"),
        *([("rows", f"{facts.rows:,}")] if facts.rows is not None else []),
        ("features", f"{facts.features:,}"),
        *([("classes", f"{len(facts.classes):,}")] if facts.classes else []),
        ("loss", facts.loss),
        ("lambda", f"{facts.reg_lambda:.3g}"),
        ("tau (common part)", f"{facts.tau:.3g}" if facts.tau > 0 else "none"),
        *facts.more,
    ]
    best = (
        "no weights and no task covariance" if facts.relations_learned else "no weights with the given task covariance"
    )
    within = percent(certificate.relative_gap)
    text = (
        f"**No model of this form can have an objective below {number(certificate.dual)}. This one has "
        f"{number(certificate.primal)}, so it is within {within} of the best.** This is a proof, not an estimate: "
        f"{best} can go below, for this data, the {facts.loss} loss and this lambda and tau."
    )
    if certificate.relative_gap > facts.tol:
        text += (
            f"\n\n**The fit stopped before it reached the {percent(facts.tol)} that was asked for.** Scale the "
            "features, choose a stronger lambda, or allow more rounds."
        )
    text += (
        "\n\n**What the certificate does not say.** It is about the objective: the sum over tasks of each task's mean "
        "loss on its rows of the fit, plus the penalty. It says nothing about the error on new rows, nor whether "
        f"lambda, the loss and the features were chosen well. {_where_to_look(facts)}"
    )
    if facts.held_out is not None:
        text = f"{held_out.paragraph(facts.held_out)}\n\n{text}"
    return Section("What was learned, and how sure it is", [KeyFigures("The model in figures", figures), Text(text)])


def _prediction(facts: ModelFacts) -> list[tuple[str, str]]:
    """Key figures: the held-out error, and that of a guess."""
    found = facts.held_out
    if found is None:
        return []
    figures = [(f"held-out {found.measure}, mean over {found.over}", found.shown(found.error))]
    if found.guess is not None:
        figures.append((f"the same, predicting {found.guess_in_words}", found.shown(found.guess)))
    return figures


def _where_to_look(facts: ModelFacts) -> str:
    """Where the error on new rows is told, or how to come to know it."""
    if facts.comparison is not None:
        return f"For that, rows are held out: see [whom sharing helps](#section-{slug(gain_section.TITLE)})."
    if facts.held_out is not None:
        return "For that, rows are held out: see how well it predicts, above."
    if not facts.comparable:
        return "For that, hold rows out: `MTRLRegressorCV`, `MTRLClassifierCV` and `dmtrl fit` without a lambda do."
    return "For that, rows must be held out: make this page with the data of the fit, `dmtrl report MODEL DATA`."


def _coefficients(facts: ModelFacts, found: Relations) -> Section:
    title = "What the models look at"
    if facts.coef is None:
        return Section(
            title,
            [
                Text(
                    "The features were mapped before the fit (random Fourier features or another `feature_map`), so a "
                    "coefficient belongs to no feature of the data and there is no such view. A model without "
                    "`feature_map` has one."
                )
            ],
        )
    size = np.abs(facts.coef).mean(axis=0)
    order = np.argsort(-size, kind="stable")
    shown = order[:MOST_FEATURES]
    columns = [facts.feature_names[j] for j in shown]
    values = found.means(facts.coef[:, shown])
    limit = float(np.abs(values).max()) or 1.0
    what = f"the mean over each group of {facts.units}" if found.grouped else f"a row for each of the {facts.units}"
    some = (
        f"The {len(shown)} of {len(order):,} features with the largest"
        if len(shown) < len(order)
        else "The features by"
    )
    comparable = (
        "The columns were brought to one scale before the fit, so they can be compared."
        if facts.scaled
        else "A coefficient is per unit of its feature: only features of one scale can be compared."
    )
    heat = HeatMap(
        "Coefficients",
        [("", values)],
        found.cell_names(facts.names),
        f"Heat map of coefficients, {what}, for {len(shown)} features: {', '.join(columns[:5])} and so on.",
        f"{some} mean size of coefficient; {what}, in the order of similarity above. Blue raises the "
        f"{'score' if facts.classes else 'prediction'}, orange lowers it. {comparable}",
        limit,
        columns,
        found.short_names(facts.names),
    )
    items: list[Item] = [heat]
    if facts.common is not None:
        items.append(_common(facts))
    rows = [
        [facts.feature_names[j], float(size[j])]
        + [float(value) for value in (facts.coef[:, j].mean(), facts.coef[:, j].min(), facts.coef[:, j].max())]
        + ([] if facts.common is None else [float(facts.common[j])])
        for j in order[:200]
    ]
    heads = ["feature", "mean size", "mean", "smallest", "largest", *([] if facts.common is None else ["common part"])]
    caption = "" if len(order) <= 200 else f"The first 200 of {len(order):,} by mean size."
    items.append(Table("Coefficients of each feature, over tasks", heads, rows, caption))
    return Section(title, items)


def _common(facts: ModelFacts) -> BarChart:
    common = np.asarray(facts.common)
    top = np.argsort(-np.abs(common), kind="stable")[:MOST_BARS]
    return BarChart(
        "What all tasks share",
        [facts.feature_names[j] for j in top],
        [("common part of the coefficient", common[top].tolist())],
        "common part of the coefficient",
        f"Bars of the common part of {len(top)} coefficients, the largest first; the table below has the numbers.",
        caption="The part of the coefficients that every task has; a task's own part comes on top. A task that was "
        "never seen is predicted from this part.",
    )


def _training(facts: ModelFacts) -> Section:
    title = "How the training went"
    if not facts.history:
        return Section(title, [Text("The model carries no record of its rounds.")])
    rounds = np.arange(1, len(facts.history) + 1)
    gap = np.array([record["gap"] for record in facts.history], dtype=float)
    seconds = np.cumsum([record["seconds"] for record in facts.history])
    megabytes = np.cumsum([record["bytes_sent"] + record["bytes_received"] for record in facts.history]) / 1e6
    figures = [
        ("rounds", f"{len(rounds):,}"),
        ("seconds", f"{seconds[-1]:.3g}"),
        ("messages", size_in_words(1e6 * megabytes[-1])),
        ("first gap", percent(gap[0]) if np.isfinite(gap[0]) else "not known"),
        ("last gap", percent(gap[-1])),
    ]
    # evenly thinned, the last round kept
    keep = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), MOST_POINTS)).astype(int))
    charts = [
        LineChart(
            name,
            label,
            "relative gap",
            [Series("proven gap", along[keep].tolist(), gap[keep].tolist())],
            f"The gap falls from {percent(gap[0]) if np.isfinite(gap[0]) else 'unknown'} to {percent(gap[-1])} "
            f"over {along[-1]:.3g} {label}.",
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
        "How far from the best",
        charts,
        "Three charts of the proven relative gap: over rounds, over seconds and over megabytes in messages.",
        3,
        "The relative gap bounds how far the objective is from the best possible, whatever that is. A round is one "
        "message to each worker and its answer; rows never travel.",
    )
    return Section(title, [KeyFigures("The work in figures", figures), grid])


def _tol_line(facts: ModelFacts, gap: np.ndarray) -> Sequence[tuple[str, float]]:
    # far below every gap the line would only squeeze the curve
    drawn = gap[np.isfinite(gap) & (gap > 0)]
    return [("asked for", facts.tol)] if facts.tol > 0 and drawn.size and drawn.min() < 30 * facts.tol else []
