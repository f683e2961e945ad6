"""Report room: the section of a model's page that says which tasks belong together.

Up to MOST_CELLS tasks the heat map has a row for each; of more it shows groups and the mean correlations between them.
Nothing here makes an array of tasks by tasks beyond that: see dmtrl.relationship.similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dmtrl.relationship.similarity import (
    ALIKE,
    WEAK,
    Pair,
    alike_groups,
    few_groups,
    group_correlations,
    nearest_tasks,
    similarity_order,
    strongest_pairs,
    unit_vectors,
)
from dmtrl.report.content import HeatMap, Item, Section, Table, Text
from dmtrl.report.model_facts import ModelFacts, several
from dmtrl.report.theme import literal

MOST_CELLS = 150  # rows of a heat map
MOST_LISTED = 5_000  # rows of the table of tasks
MOST_PAIRED = 20_000  # tasks among which the strongest pairs are sought
PAIRS = 10
LONG_NAME = 16  # letters; two tables of longer names do not fit side by side
TITLE = "Which tasks belong together"


@dataclass(frozen=True)
class Relations:
    """What is read off the task covariance once, for the sentences, the tables and the heat maps.

    groups: a number for each task, counted from 0 in the order shown. cells: the tasks behind each row of the heat
    map, in order; one each unless there are too many. matrix: the correlations of these rows. alike and opposed: the
    strongest pairs, none of them weaker than WEAK.
    """

    vectors: np.ndarray
    groups: np.ndarray
    group_matrix: np.ndarray
    cells: Sequence[np.ndarray]
    matrix: np.ndarray
    alike: list[Pair]
    opposed: list[Pair]
    sampled: bool

    @property
    def grouped(self) -> bool:
        """Whether a row of the heat map is a group, not a task."""
        return len(self.cells) < len(self.vectors)

    def cell_names(self, names: Sequence[str]) -> list[str]:
        if not self.grouped:
            return [names[int(tasks[0])] for tasks in self.cells]
        return [
            f"{short}, {len(tasks):,} tasks: {several([names[i] for i in tasks], 3)}"
            for short, tasks in zip(self.short_names(names), self.cells, strict=True)
        ]

    def short_names(self, names: Sequence[str]) -> list[str]:
        return [f"group {k + 1}" for k in range(len(self.cells))] if self.grouped else self.cell_names(names)

    def group_number(self, group: int) -> int | None:
        """The number by which the page speaks of a group, counted from 1; None for a task that is in no group, unless
        it has a row of the heat map under that number."""
        sizes = np.bincount(self.groups)
        if self.grouped:
            return int(group) + 1
        return int((sizes[: group + 1] > 1).sum()) if sizes[group] > 1 else None

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean over the tasks of each row of the heat map."""
        return np.array([values[tasks].mean(axis=0) for tasks in self.cells])


def relations(facts: ModelFacts) -> Relations:
    vectors = unit_vectors(facts.covariance)
    m = len(vectors)
    if m <= MOST_CELLS:
        matrix = facts.covariance.correlation()
        order = similarity_order(matrix)
        cells = [np.array([i]) for i in order]
        matrix = matrix[np.ix_(order, order)]
        groups = _numbered(alike_groups(facts.covariance.correlation())[order])[np.argsort(order)]
    else:
        found = few_groups(vectors, MOST_CELLS)
        matrix = group_correlations(vectors, found)
        order = similarity_order(matrix)
        matrix, groups = matrix[np.ix_(order, order)], np.argsort(order)[found]
        cells = [np.flatnonzero(groups == g) for g in range(len(order))]
    sampled = m > MOST_PAIRED
    searched = np.linspace(0, m - 1, MOST_PAIRED).astype(int) if sampled else np.arange(m)
    alike, opposed = (
        [Pair(int(searched[p.first]), int(searched[p.second]), p.value) for p in pairs if abs(p.value) >= WEAK]
        for pairs in (strongest_pairs(vectors[searched], PAIRS) if m > 1 else ([], []))
    )
    return Relations(vectors, groups, group_correlations(vectors, groups), cells, matrix, alike, opposed, sampled)


def _numbered(groups: np.ndarray) -> np.ndarray:
    """Group numbers counted anew in order of appearance."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


def related_at_all(found: Relations) -> bool:
    return bool(found.alike or found.opposed)


def headline(facts: ModelFacts, found: Relations) -> str:
    """One sentence about the relations, for the top of the page."""
    if len(facts.names) == 1:
        return "There is one task, so there is nobody to share with."
    if not related_at_all(found):
        return f"No two {facts.units} are related: each was as good as learned alone."
    sentences = []
    joint = [int(size) for size in np.bincount(found.groups) if size > 1]
    if len(joint) == 1 and joint[0] == len(facts.names):
        sentences.append(f"All {joint[0]:,} {facts.units} are alike.")
    elif found.grouped:
        sentences.append(
            f"The {len(facts.names):,} {facts.units} fall into {len(found.cells):,} groups of similar ones."
        )
    elif joint:
        loose = len(facts.names) - sum(joint)
        alone = f"; {loose:,} {'stands' if loose == 1 else 'stand'} apart" if loose else ""
        groups = f"{len(joint)} group{'s' if len(joint) > 1 else ''}"
        some = f"{sum(joint):,} of {len(facts.names):,}" if loose else f"The {len(facts.names):,}"
        sentences.append(f"{some} {facts.units} form {groups}{alone}.")
    if found.opposed:
        pair = found.opposed[0]
        first, second = literal(facts.names[pair.first]), literal(facts.names[pair.second])
        sentences.append(f"Most opposed: {first} and {second} ({_signed(pair.value)}).")
    else:
        sentences.append("No two are opposed.")
    return " ".join(sentences)


def relation_section(facts: ModelFacts, found: Relations) -> Section:
    if len(facts.names) == 1:
        return Section(
            TITLE, [Text("The model has one task. With two or more, this section shows how they are related.")]
        )
    source = "learned together with the models" if facts.relations_learned else "given, not learned from the data"
    reading = (
        f"The correlation of two {facts.units} says how alike their models are. +1: the same features act the same "
        "way. 0: unrelated; neither learns from the other. −1: **opposed**: what speaks for the one speaks against "
        f"the other, and that too is borrowed from. These correlations were {source}."
    )
    items: list[Item] = [Text(reading)]
    if not related_at_all(found):
        items.append(
            Text(f"**No two {facts.units} are related here**: every correlation is nearer to 0 than {WEAK:g}.")
        )
    items += [
        *([_heat_map(facts, found)] if len(found.cells) > 1 else []),  # of one group there is nothing to see
        *_pair_tables(facts, found),
        *_group_table(facts, found),
        _task_table(facts, found),
    ]
    return Section(TITLE, items)


def _heat_map(facts: ModelFacts, found: Relations) -> HeatMap:
    m = len(facts.names)
    what = f"groups of {facts.units}" if found.grouped else facts.units
    if found.grouped:
        caption = (
            f"{m:,} {facts.units} in {len(found.cells)} groups of similar ones; a cell is the **mean** correlation of "
            "the tasks of two groups, on the diagonal of different tasks within one. "
        )
    else:
        caption = "One row and column each. "
    caption += "Ordered by similarity: related ones stand side by side, next to those that are opposed to them. "
    caption += "Hover for the pair and its value; drag to zoom in, double-click to zoom out."
    panels = [("", found.matrix)]
    if facts.truth is not None and not found.grouped:
        order = [int(tasks[0]) for tasks in found.cells]
        panels = [("learned", found.matrix), ("true", facts.truth[np.ix_(order, order)])]
    off = found.matrix[~np.eye(len(found.matrix), dtype=bool)]
    alt = (
        f"Heat map of the correlations of {m:,} {what}, from {_signed(off.min())} to {_signed(off.max())}; "
        "the tables below give the strongest pairs and every task's nearest."
    )
    labels, short = found.cell_names(facts.names), found.short_names(facts.names)
    return HeatMap(f"Correlation of {what}", panels, labels, alt, caption, short=short)


def _pair_tables(facts: ModelFacts, found: Relations) -> list[Item]:
    where = f"Sought among {MOST_PAIRED:,} of the {len(facts.names):,}, evenly spaced." if found.sampled else ""
    named = {place for pair in (*found.alike, *found.opposed) for place in (pair.first, pair.second)}
    half = max((len(facts.names[place]) for place in named), default=0) <= LONG_NAME
    items: list[Item] = []
    for title, pairs, lack in (
        ("Most alike", found.alike, f"No two have a correlation of {WEAK:g} or more."),
        (
            "Most opposed",
            found.opposed,
            f"No two have a correlation of −{WEAK:g} or less: nobody is opposed to anybody.",
        ),
    ):
        rows = [[facts.names[pair.first], facts.names[pair.second], pair.value] for pair in pairs]
        if rows:
            items.append(Table(title, ["one", "the other", "correlation"], rows, where, half))
        else:
            items.append(Text(f"**{title}:** {lack}"))
    return items


def _group_table(facts: ModelFacts, found: Relations) -> list[Item]:
    sizes = np.bincount(found.groups)
    if len(sizes) < 2 or (sizes == 1).all():
        return []
    rows: list[list[object]] = []
    for g in np.flatnonzero(sizes > 1).tolist():
        others = np.where(np.arange(len(sizes)) == g, np.inf, found.group_matrix[g])
        other = int(others.argmin())
        opposed = others[other] <= -WEAK
        names = [facts.names[int(i)] for i in np.flatnonzero(found.groups == g)]
        against = [_group_in_words(facts, found, other), float(others[other])] if opposed else [None, None]
        within = float(found.group_matrix[g, g])
        rows.append([found.group_number(g), int(sizes[g]), several(names, 12), within, *against])
    how = (
        f"Groups of nearest tasks (k-means, at most {MOST_CELLS}). Groups of one are left out."
        if found.grouped
        else f"Tasks whose mean correlation is at least {ALIKE:g} (average linkage)."
    )
    alone = [facts.names[int(i)] for i in np.flatnonzero(sizes[found.groups] == 1)]
    apart = f" In no group: {literal(several(alone, 12))}." if alone and not found.grouped else ""
    columns = ["group", "tasks", "which", "mean within", "most opposed to", "mean with it"]
    return [Table("Groups", columns, rows, f"{how} The means are of correlations.{apart}")]


def _group_in_words(facts: ModelFacts, found: Relations, group: int) -> str:
    """A group by its number in the table, or the one task of a group that is not listed there by its name."""
    members = np.flatnonzero(found.groups == group)
    return facts.names[int(members[0])] if len(members) == 1 else f"group {found.group_number(group)}"


def _task_table(facts: ModelFacts, found: Relations) -> Table:
    m = len(facts.names)
    shown = np.arange(m) if m <= MOST_LISTED else np.linspace(0, m - 1, MOST_LISTED).astype(int)
    nearest = nearest_tasks(found.vectors[shown])
    names = [facts.names[int(i)] for i in shown]
    rows: list[list[object]] = []
    for i, name in enumerate(names):
        row: list[object] = [name, found.group_number(int(found.groups[shown[i]])), None, None, None, None]
        if nearest.alike_value[i] >= WEAK:
            row[2:4] = [names[nearest.alike[i]], float(nearest.alike_value[i])]
        if nearest.opposed_value[i] <= -WEAK:
            row[4:6] = [names[nearest.opposed[i]], float(nearest.opposed_value[i])]
        rows.append(row)
    columns = ["task", "group", "most alike", "correlation", "most opposed", "its correlation"]
    few = f"{MOST_LISTED:,} of the {m:,}, evenly spaced, and their nearest among these. " if m > MOST_LISTED else ""
    alone = "" if found.grouped else " A task that forms no group has no number there."
    caption = f"{few}Correlations nearer to 0 than {WEAK:g} are left out.{alone}"
    return Table("Each task and its nearest", columns, rows, caption)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
