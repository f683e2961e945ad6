"""The section of a model's page about which tasks sharing helps and which it hurts.

The numbers come from a `Comparison`; nothing is fitted here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dmtrl.estimators.comparison import PARTS, Comparison, measure_name
from dmtrl.report.content import DotPlot, Item, LineChart, Section, Series, Table, Text
from dmtrl.report.model_page.facts import ModelFacts
from dmtrl.report.model_page.held_out import format_error
from dmtrl.report.theme import format_number, literal
from dmtrl.tables.names import listed

TITLE = "Where sharing helps"
MAX_DOTS = 60  # lines of the dot plot; with more tasks it shows the largest and the smallest gains
HURT = "hurt by sharing"
MODELS = ("together", "alone", "pooled")


def headline(facts: ModelFacts) -> str:
    """One sentence about gains for the top of the page; empty without a comparison."""
    if facts.comparison is None:
        return ""
    counted = ~facts.comparison.tiny
    gain = (facts.comparison.alone - facts.comparison.together)[counted]
    helped, hurt = int((gain > 0).sum()), int(facts.comparison.hurts[counted].sum())
    sentence = f"On held-out rows, {helped:,} of {len(gain):,} tasks do better together than alone"
    if not hurt:
        return f"{sentence}, and no task is marked as hurt."
    return f"{sentence}; {_marked(hurt, len(gain))}."


def _marked(hurt: int, m: int) -> str:
    """How many tasks are marked as hurt, and how many a test at 1 % marks by chance: it is not corrected for m."""
    chance = f"about {round(m / 100):,}" if m >= 100 else "fewer than one"
    be = "is" if hurt == 1 else "are"
    return f"{hurt:,} of {m:,} {be} marked as hurt ({chance} expected by chance)"


def gain_section(facts: ModelFacts) -> Section:
    if facts.comparison is None:
        return Section(TITLE, [Text(_how_to_compare(facts))])
    comparison = replace(facts.comparison, measure=measure_name(facts.comparison.measure))
    names = [str(name) for name in comparison.tasks]
    gain = comparison.alone - comparison.together
    order = np.argsort(-gain, kind="stable")  # NaN is last
    items: list[Item] = [Text(_summary(comparison, names))]
    if len(names) > MAX_DOTS:
        items.append(_gain_curve(comparison, names, gain, order))
    items.append(_error_dots(comparison, names, order))
    rows = [
        [
            names[i],
            *(float(getattr(comparison, model)[i]) for model in MODELS),
            float(gain[i]),
            "yes" if comparison.hurts[i] else None,
        ]
        for i in order
    ]
    columns = ["task", *MODELS, "gain", "hurt"]
    caption = f"Mean held-out {comparison.measure}. The gain is alone minus together. Click a column heading to sort."
    items.append(Table("Errors and gains", columns, rows, caption))
    items += _share_table(comparison, names)
    return Section(TITLE, items)


def _share_table(comparison: Comparison, names: list[str]) -> list[Item]:
    """The rows of each task, and how much of its coefficients is common, related and its own."""
    if comparison.rows is None or comparison.shares is None:
        return []
    some = bool(comparison.tiny.any())  # only then there is a column with marks
    lines = [
        [name, int(comparison.rows[i]), *(["few" if comparison.tiny[i] else None] if some else []), *shares.tolist()]
        for i, (name, shares) in enumerate(zip(names, comparison.shares, strict=True))
    ]
    columns = ["task", "rows", *(["few rows"] if some else []), *PARTS]
    caption = (
        "How much of a task's coefficients all tasks share (common), only related tasks share (related), and the task "
        "has of its own: the lengths of the three parts, divided by their sum."
    )
    return [Table("Rows and shares", columns, lines, caption)]


def _how_to_compare(facts: ModelFacts) -> str:
    if len(facts.names) == 1:
        return "The model has one task, so there is no other task to share with."
    return (
        "This section needs the data of the fit. **To add it**, run `dmtrl report MODEL DATA`, or in Python call "
        "`write_model_page(model, path, X, y, tasks)`. Each task is then fitted together with the others, alone, and "
        "pooled with the others, and the errors are measured on held-out rows."
    )


def _summary(comparison: Comparison, names: list[str]) -> str:
    gain = comparison.alone - comparison.together
    means = [float(np.nanmean(getattr(comparison, model))) for model in MODELS]
    verdict = {
        "together": "Learning together has the lowest error.",
        "alone": "**Here, one model for each task alone has the lowest error.**",
        "pooled": "**Here, one model for all tasks has the lowest error**: the tasks hardly differ, or have few rows.",
    }[MODELS[int(np.argmin(means))]]
    tiny = comparison.tiny
    gain, count = gain[~tiny], int((~tiny).sum())
    helped, worse = int((gain > 0).sum()), int((gain < 0).sum())
    hurt = [names[i] for i in np.flatnonzero(comparison.hurts & ~tiny)]
    marked = f"{_marked(len(hurt), count)}: {literal(listed(hurt))}" if hurt else "No task is marked as hurt"
    few = f" (without {int(tiny.sum()):,} with fewer rows than 3 or than a tenth of the median)" if tiny.any() else ""
    shown = [format_error(mean, comparison.measure) for mean in means]
    return (
        f"Mean held-out {comparison.measure} over tasks with equal weight: **{shown[0]}** together, **{shown[1]}** "
        f"each task alone, **{shown[2]}** with one model for all tasks. {verdict}\n\n"
        f"Of {count:,} tasks{few}, {helped:,} do better together than alone and {worse:,} do worse. {marked}. A task "
        "is marked as hurt if a one-sided test at the 1 % level finds a larger error together than alone. Each task is "
        "tested separately."
    )


def _gain_curve(comparison: Comparison, names: list[str], gain: np.ndarray, order: np.ndarray) -> LineChart:
    rank = np.arange(1, len(order) + 1)
    hurt = comparison.hurts[order]
    series = []
    for name, rows in (("gain of a task", ~hurt), (HURT, hurt)):
        if rows.any():
            tasks = [names[i] for i in order[rows]]
            series.append(Series(name, rank[rows].tolist(), gain[order][rows].tolist(), "points", names=tasks))
    most, least = format_number(float(np.nanmax(gain))), format_number(float(np.nanmin(gain)))
    return LineChart(
        "Gain of all tasks",
        "rank by gain",
        f"gain in {comparison.measure}",
        series,
        f"A falling curve of {len(order):,} points: the gain of each task from sharing, from {most} down to {least}.",
        caption="Above zero, a task does better together than alone. Hover over a point to see the task.",
        references=[("no gain", 0.0)],
    )


def _error_dots(comparison: Comparison, names: list[str], order: np.ndarray) -> DotPlot:
    shown = order
    title, caption = "Error of each task, by gain", "Tasks are sorted by their gain from sharing, the largest first."
    if len(order) > MAX_DOTS:
        half = MAX_DOTS // 2
        shown = np.concatenate([order[:half], order[-half:]])
        title = "Tasks with the largest and the smallest gain"
        caption = f"The first {half} tasks gain most, the last {half} gain least. The table lists all tasks."
    models = list(MODELS)
    largest = [float(np.nanmax(getattr(comparison, model)[shown])) for model in MODELS]
    if largest[2] > 1.5 * max(largest[:2]):  # distant dots would compress the others
        models.remove("pooled")
        worst = format_error(largest[2], comparison.measure)
        caption += f" The errors of the pooled model are much larger, up to {worst}, and are not shown."
    return DotPlot(
        title,
        [names[i] for i in shown],
        [(model, getattr(comparison, model)[shown].tolist()) for model in models],
        f"held-out {comparison.measure}",
        f"One line for each of {len(shown)} tasks with its error {', '.join(models)}; the table below has the numbers.",
        [place for place, i in enumerate(shown) if comparison.hurts[i]],
        HURT,
        caption + " Further left is better. The bar connects together and alone.",
    )
