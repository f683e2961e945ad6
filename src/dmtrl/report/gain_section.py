"""Report room: the section of a model's page that says whom sharing helped and whom it hurt.

The numbers are those of a `Comparison`; nothing is fitted here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dmtrl.estimators.diagnostics import Comparison
from dmtrl.report.content import DotPlot, Item, LineChart, Section, Series, Table, Text
from dmtrl.report.displays import MEASURES
from dmtrl.report.held_out import in_measure
from dmtrl.report.model_facts import ModelFacts, number, several
from dmtrl.report.theme import literal

TITLE = "Whom sharing helps, and whom it hurts"
MOST_DOTS = 60  # lines of the dot plot; of more tasks the two ends are shown
HURT = "marked as hurt by sharing"
WAYS = ("together", "alone", "pooled")


def headline(facts: ModelFacts) -> str:
    """One sentence about gains, for the top of the page; empty without a comparison."""
    if facts.comparison is None:
        return ""
    gain = facts.comparison.alone - facts.comparison.together
    helped, hurt = int((gain > 0).sum()), int(facts.comparison.hurts.sum())
    sentence = f"On held-out rows {helped:,} of {len(gain):,} do better together than alone"
    if not hurt:
        return f"{sentence}, and none is marked as hurt."
    return f"{sentence}; {_marked(hurt, len(gain))}."


def _marked(hurt: int, m: int) -> str:
    """How many are marked, beside how many a test at 1 % marks where nothing is wrong: it is not corrected for m."""
    chance = f"about {round(m / 100):,}" if m >= 100 else "fewer than one"
    be = "is" if hurt == 1 else "are"
    return f"{hurt:,} of {m:,} {be} marked as hurt (of {m:,} tasks {chance} would be by chance alone)"


def gain_section(facts: ModelFacts) -> Section:
    if facts.comparison is None:
        return Section(TITLE, [Text(_what_to_do(facts))])
    comparison = replace(facts.comparison, measure=MEASURES.get(facts.comparison.measure, facts.comparison.measure))
    names = [str(name) for name in comparison.tasks]
    gain = comparison.alone - comparison.together
    order = np.argsort(-np.where(np.isnan(gain), -np.inf, gain), kind="stable")
    items: list[Item] = [Text(_summary(comparison, names))]
    if len(names) > MOST_DOTS:
        items.append(_all_gains(comparison, names, gain, order))
    items.append(_dots(comparison, names, order))
    rows = [
        [
            names[i],
            *(float(getattr(comparison, way)[i]) for way in WAYS),
            float(gain[i]),
            "yes" if comparison.hurts[i] else None,
        ]
        for i in order
    ]
    columns = ["task", *WAYS, "gain by sharing", "marked as hurt"]
    caption = f"Mean held-out {comparison.measure}; the gain is alone minus together. Click a heading to sort."
    items.append(Table("Errors and gains", columns, rows, caption))
    return Section(TITLE, items)


def _what_to_do(facts: ModelFacts) -> str:
    if not facts.comparable:
        return "The model has one task, so there is nothing that sharing could help or hurt."
    return (
        "A model alone cannot say this: it takes data with known answers, the rows of the fit. **To see it here**, "
        "give the data too: `dmtrl report MODEL DATA`, or in Python `write_model_page(model, path, X, y, tasks)`. "
        "Every task is then fitted together with the others, alone and pooled, and each way is judged on held-out rows."
    )


def _summary(comparison: Comparison, names: list[str]) -> str:
    gain = comparison.alone - comparison.together
    means = [float(np.nanmean(getattr(comparison, way))) for way in WAYS]
    best = WAYS[int(np.argmin(means))]
    verdict = {
        "together": "Learning together is the best of the three.",
        "alone": "**Here each task alone is the best of the three.**",
        "pooled": "**Here one model for all is the best of the three**: the tasks hardly differ, or have few rows.",
    }[best]
    helped, worse = int((gain > 0).sum()), int((gain < 0).sum())
    hurt = [name for name, is_hurt in zip(names, comparison.hurts, strict=True) if is_hurt]
    marked = f"{_marked(len(hurt), len(names))}: {literal(several(hurt))}" if hurt else "None is marked as hurt"
    shown = [in_measure(mean, comparison.measure) for mean in means]
    return (
        f"Mean {comparison.measure} over tasks, each of which counts the same, on rows that were held out: "
        f"**{shown[0]}** together, **{shown[1]}** each task alone, **{shown[2]}** with one model for all. {verdict}\n\n"
        f"Of {len(names):,} tasks {helped:,} do better together than alone and {worse:,} do worse. {marked}. A task is "
        "marked where a one-sided test at 1 % finds it worse together than alone; the test takes each task by itself."
    )


def _all_gains(comparison: Comparison, names: list[str], gain: np.ndarray, order: np.ndarray) -> LineChart:
    rank = np.arange(1, len(order) + 1)
    hurt = comparison.hurts[order]
    series = []
    for name, rows in (("gain of a task", ~hurt), (HURT, hurt)):
        if rows.any():
            known = [names[i] for i in order[rows]]
            series.append(Series(name, rank[rows].tolist(), gain[order][rows].tolist(), "points", names=known))
    most, least = number(float(np.nanmax(gain))), number(float(np.nanmin(gain)))
    return LineChart(
        "Gain of all tasks",
        "place, from the largest gain",
        f"gain in {comparison.measure}",
        series,
        f"A falling curve of {len(order):,} points: the gain of each task by sharing, from {most} down to {least}.",
        caption="Above zero: better together than alone. Hover for the task.",
        references=[("no gain", 0.0)],
    )


def _dots(comparison: Comparison, names: list[str], order: np.ndarray) -> DotPlot:
    few = order
    title, caption = (
        "Error of every task, by gain",
        "The task that gains most from sharing is first.",
    )
    if len(order) > MOST_DOTS:
        few = np.concatenate([order[: MOST_DOTS // 2], order[-MOST_DOTS // 2 :]])
        title = "The tasks that gain most, and those that gain least"
        caption = f"The first {MOST_DOTS // 2} gain most, the last {MOST_DOTS // 2} least; the table has all."
    ways = list(WAYS)
    largest = [float(np.nanmax(getattr(comparison, way)[few])) for way in WAYS]
    if largest[2] > 1.5 * max(largest[:2]):  # dots far away would press the others together
        ways.remove("pooled")
        caption += (
            f" Pooled is worse by far, up to {in_measure(largest[2], comparison.measure)}, and would not fit here."
        )
    return DotPlot(
        title,
        [names[i] for i in few],
        [(way, getattr(comparison, way)[few].tolist()) for way in ways],
        f"held-out {comparison.measure}",
        f"One line for each of {len(few)} tasks with its error {', '.join(ways)}; the table below has the numbers.",
        [place for place, i in enumerate(few) if comparison.hurts[i]],
        HURT,
        caption + " Left is better; the bar joins together and alone.",
    )
