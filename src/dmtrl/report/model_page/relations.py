"""The section of a model's page about which tasks are related.

The heat map has one row per task up to MAX_CELLS tasks. With more tasks it shows groups and the mean correlations
between them, so that no array of all pairs of tasks is needed.
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
from dmtrl.report.model_page.facts import ModelFacts
from dmtrl.report.theme import literal
from dmtrl.tables.names import listed

MAX_CELLS = 150  # rows of a heat map
MAX_LISTED = 5_000  # rows of the table of tasks
MAX_PAIRED = 20_000  # tasks among which the strongest pairs are searched
PAIRS = 10
LONG_NAME = 16  # characters; two tables with longer names do not fit side by side
TITLE = "Which tasks are related"
FEW_ROWS = "Tasks with very few rows (fewer than 3, or than a tenth of the median) are left out."


@dataclass(frozen=True)
class Relations:
    """The relations between tasks, for text, tables and heat maps.

    groups: the group number of each task, from 0 in the order shown. cells: the tasks of each row of the heat map, one
    each unless rows are groups. matrix: the correlations of these rows. alike and opposed: the strongest pairs, none
    weaker than WEAK. sampled: whether only some tasks were searched for pairs. vectors: products are correlations; zero
    for tasks with very few rows, whose relations are mostly chance.
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
    def any(self) -> bool:
        """Whether any two tasks are related."""
        return bool(self.alike or self.opposed)

    @property
    def grouped(self) -> bool:
        """Whether the rows of the heat map are groups of tasks."""
        return len(self.cells) < len(self.vectors)

    def cell_names(self, names: Sequence[str]) -> list[str]:
        if not self.grouped:
            return [names[int(tasks[0])] for tasks in self.cells]
        return [
            f"{short}, {len(tasks):,} tasks: {listed([names[i] for i in tasks], 3)}"
            for short, tasks in zip(self.short_names(names), self.cells, strict=True)
        ]

    def short_names(self, names: Sequence[str]) -> list[str]:
        return [f"group {k + 1}" for k in range(len(self.cells))] if self.grouped else self.cell_names(names)

    def group_number(self, group: int) -> int | None:
        """The number of a group on the page, from 1. None for a group of one task, unless the heat map shows groups."""
        sizes = np.bincount(self.groups)
        if self.grouped:
            return int(group) + 1
        return int((sizes[: group + 1] > 1).sum()) if sizes[group] > 1 else None

    def means(self, values: np.ndarray) -> np.ndarray:
        """The means over the tasks of each row of the heat map."""
        return np.array([values[tasks].mean(axis=0) for tasks in self.cells])


def relations(facts: ModelFacts) -> Relations:
    vectors = unit_vectors(facts.covariance)
    m = len(vectors)
    if m <= MAX_CELLS:
        matrix = facts.covariance.correlation()
        order = similarity_order(matrix)
        cells = [np.array([i]) for i in order]
        groups = _renumbered(alike_groups(matrix)[order])[np.argsort(order)]
    else:
        found = few_groups(vectors, MAX_CELLS)
        matrix = group_correlations(vectors, found)
        order = similarity_order(matrix)
        groups = np.argsort(order)[found]
        cells = [np.flatnonzero(groups == g) for g in range(len(order))]
    matrix = matrix[np.ix_(order, order)]
    group_matrix = group_correlations(vectors, groups)
    vectors[facts.tiny] = 0.0
    sampled = m > MAX_PAIRED
    searched = np.linspace(0, m - 1, MAX_PAIRED).astype(int) if sampled else np.arange(m)
    alike, opposed = (
        [Pair(int(searched[p.first]), int(searched[p.second]), p.value) for p in pairs if abs(p.value) >= WEAK]
        for pairs in (strongest_pairs(vectors[searched], PAIRS) if m > 1 else ([], []))
    )
    return Relations(vectors, groups, group_matrix, cells, matrix, alike, opposed, sampled)


def _renumbered(groups: np.ndarray) -> np.ndarray:
    """Group numbers from 0 in order of appearance."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


def headline(facts: ModelFacts, found: Relations) -> str:
    """One sentence about the relations for the top of the page."""
    if not found.any:
        return "No two tasks are related: each was in effect learned alone."
    sentences = []
    count = int((~facts.tiny).sum())
    joint = [int(size) for size in np.bincount(found.groups[~facts.tiny]) if size > 1]
    if len(joint) == 1 and joint[0] == count:
        sentences.append(f"All {joint[0]:,} tasks{_left_out(facts)} are alike.")
    elif found.grouped:
        sentences.append(f"The {len(facts.names):,} tasks form {len(found.cells):,} groups of similar tasks.")
    elif joint:
        loose = count - sum(joint)
        alone = f"; {loose:,} {'is' if loose == 1 else 'are'} in no group" if loose else ""
        groups = f"{len(joint)} group{'s' if len(joint) > 1 else ''}"
        some = f"{sum(joint):,} of {count:,}" if loose else f"The {count:,}"
        sentences.append(f"{some} tasks{_left_out(facts)} form {groups}{alone}.")
    if found.opposed:
        pair = found.opposed[0]
        first, second = literal(facts.names[pair.first]), literal(facts.names[pair.second])
        sentences.append(f"Most opposed: {first} and {second} ({_signed(pair.value)}).")
    else:
        sentences.append("No two tasks are opposed.")
    return " ".join(sentences)


def _left_out(facts: ModelFacts) -> str:
    few = int(facts.tiny.sum())
    return f" (without {few:,} with very few rows)" if few else ""


def relation_section(facts: ModelFacts, found: Relations) -> Section:
    if len(facts.names) == 1:
        return Section(
            TITLE, [Text("The model has only one task. With several tasks, this section shows how they are related.")]
        )
    source = "learned from the data" if facts.relations_learned else "given, not learned from the data"
    reading = (
        "The correlation of two tasks measures how similar their models are. +1 means that features have the "
        "same effect in both. 0 means unrelated: neither learns from the other. −1 means **opposed**: features have "
        f"opposite effects, and each still learns from the other. These correlations were {source}."
    )
    items: list[Item] = [Text(reading)]
    if not found.any:
        items.append(Text(f"**No two tasks are related**: every correlation is between −{WEAK:g} and {WEAK:g}."))
    items += [
        *([_heat_map(facts, found)] if len(found.cells) > 1 else []),  # a single cell shows nothing
        *_pair_tables(facts, found),
        *_group_table(facts, found),
        _task_table(facts, found),
    ]
    return Section(TITLE, items)


def _heat_map(facts: ModelFacts, found: Relations) -> HeatMap:
    m = len(facts.names)
    what = "groups of tasks" if found.grouped else "tasks"
    if found.grouped:
        caption = (
            f"{m:,} tasks in {len(found.cells)} groups. A cell shows the **mean** correlation between the "
            "tasks of two groups, or on the diagonal between different tasks of one group. "
        )
    else:
        caption = "One row and one column for each of the tasks. "
    caption += "Rows are ordered by similarity: related tasks are adjacent, next to tasks that are opposed to them. "
    caption += "Hover over a cell to see the pair and its value. Drag to zoom in, double-click to zoom out."
    panels = [("", found.matrix)]
    order = [int(tasks[0]) for tasks in found.cells]
    if facts.truth is not None and not found.grouped:
        panels = [("learned", found.matrix), ("true", facts.truth[np.ix_(order, order)])]
    elif facts.intervals is not None and not found.grouped:
        clear = facts.intervals.without_zero[np.ix_(order, order)]
        panels = [("learned", found.matrix), ("clearly not zero", np.where(clear, found.matrix, np.nan))]
        pairs = np.triu_indices(m, 1)
        level, kept = facts.intervals.level, f"{int(clear[pairs].sum()):,} of {len(pairs[0]):,}"
        caption += (
            f" On the right, pairs whose {level:.0%} interval contains zero are left blank: the rows do not tell if "
            f"they are related. {kept} pairs remain; of pairs that are not related, {1 - level:.0%} remain by chance."
        ).replace("%", " %")
    off = found.matrix[~np.eye(len(found.matrix), dtype=bool)]
    alt = (
        f"Heat map of the correlations of {m:,} {what}, from {_signed(off.min())} to {_signed(off.max())}; "
        "the tables below list the strongest pairs and the closest task of each."
    )
    labels, short = found.cell_names(facts.names), found.short_names(facts.names)
    return HeatMap(f"Correlation of {what}", panels, labels, alt, caption, short=short)


def _pair_tables(facts: ModelFacts, found: Relations) -> list[Item]:
    where = f"Searched among {MAX_PAIRED:,} evenly spaced tasks of {len(facts.names):,}." if found.sampled else ""
    if facts.tiny.any():
        where = f"{where} {FEW_ROWS}".strip()
    named = {place for pair in (*found.alike, *found.opposed) for place in (pair.first, pair.second)}
    half = max((len(facts.names[place]) for place in named), default=0) <= LONG_NAME
    items: list[Item] = []
    for title, pairs, none in (
        ("Most alike", found.alike, f"no two have a correlation of {WEAK:g} or more."),
        ("Most opposed", found.opposed, f"no two have a correlation of −{WEAK:g} or less."),
    ):
        rows = [[facts.names[pair.first], facts.names[pair.second], pair.value] for pair in pairs]
        if rows:
            items.append(Table(title, ["task", "other task", "correlation"], rows, where, half))
        else:
            items.append(Text(f"**{title}:** {none}"))
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
        against = [_group_name(facts, found, other), float(others[other])] if opposed else [None, None]
        within = float(found.group_matrix[g, g])
        rows.append([found.group_number(g), int(sizes[g]), listed(names, 12), within, *against])
    how = (
        f"Groups of similar tasks (k-means, at most {MAX_CELLS}). Groups with one task are left out."
        if found.grouped
        else f"Groups of tasks with a mean correlation of at least {ALIKE:g} (average linkage)."
    )
    alone = [facts.names[int(i)] for i in np.flatnonzero(sizes[found.groups] == 1)]
    apart = f" In no group: {literal(listed(alone, 12))}." if alone and not found.grouped else ""
    columns = ["group", "size", "tasks", "mean correlation", "most opposed to", "mean correlation with it"]
    return [Table("Groups", columns, rows, f"{how}{apart}")]


def _group_name(facts: ModelFacts, found: Relations, group: int) -> str:
    """The number of a group in the table, or for a group of one task its name."""
    members = np.flatnonzero(found.groups == group)
    return facts.names[int(members[0])] if len(members) == 1 else f"group {found.group_number(group)}"


def _task_table(facts: ModelFacts, found: Relations) -> Table:
    m = len(facts.names)
    shown = np.arange(m) if m <= MAX_LISTED else np.linspace(0, m - 1, MAX_LISTED).astype(int)
    nearest = nearest_tasks(found.vectors[shown])
    names = [facts.names[int(i)] for i in shown]
    count, tiny, some = facts.task_rows, facts.tiny, bool(facts.tiny.any())
    rows: list[list[object]] = []
    for i, task in enumerate(shown.tolist()):
        row: list[object] = [names[i]]
        row += [] if count is None else [int(count[task])]
        row += [("few" if tiny[task] else None)] if some else []
        row += [found.group_number(int(found.groups[task]))]
        alike, opposed = float(nearest.alike_value[i]), float(nearest.opposed_value[i])
        row += [names[nearest.alike[i]], alike] if alike >= WEAK else [None, None]
        row += [names[nearest.opposed[i]], opposed] if opposed <= -WEAK else [None, None]
        rows.append(row)
    columns = ["task", *([] if count is None else ["rows"]), *(["few rows"] if some else [])]
    columns += ["group", "most alike", "correlation", "most opposed", "correlation with it"]
    few = f"{MAX_LISTED:,} evenly spaced tasks of {m:,}, compared with each other. " if m > MAX_LISTED else ""
    alone = "" if found.grouped else " A task without a group number is in no group."
    marked = " Tasks marked as having few rows have fewer than 3, or than a tenth of the median." if some else ""
    caption = f"{few}Correlations between −{WEAK:g} and {WEAK:g} are left out.{marked}{alone}"
    return Table("Closest tasks", columns, rows, caption)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
