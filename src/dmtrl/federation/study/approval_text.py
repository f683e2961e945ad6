"""The text that the staff of a site read before they approve a study: what it does, what leaves, and what does not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dmtrl.federation.study.models import number_of_fits
from dmtrl.federation.study.study_file import Study

MOST_FOLDS = 20  # that a site allows


@dataclass(frozen=True)
class Leaving:
    """One kind of message that leaves a site: what is in it, how many numbers, and how often at most."""

    message: str
    content: str
    numbers: int
    times: int


@dataclass(frozen=True)
class SiteTerms:
    """What a site says about a study: its rows of each task that takes part, and its thresholds.

    fitted: the tasks that are fitted; allowed: the messages that its policy lets out; leaving, protection: what can
    leave, and sentences about its protection, both from the protection of the study.
    """

    site: str
    rows: Mapping[str, int]
    fitted: Collection[str]
    allowed: Collection[str]
    leaving: Sequence[Leaving]
    protection: Sequence[str]
    runs: int
    minimum_rows: int
    minimum_held_out: int
    parameters_per_row: float


def approval_text(study: Study, terms: SiteTerms) -> str:
    """In plain words: what the study does, what leaves this site, and what does not."""
    target = study.target
    predicts = f"{target.column!r}"
    if study.classification:
        negative, positive = study.class_names
        predicts += f" ({positive} against {negative})"
    rows = ", ".join(f"{name}: {n:,} rows" for name, n in terms.rows.items()) or "no rows"
    lines = [
        f"Study {study.name!r}, hash {study.hash}",
        *([study.description] if study.description else []),
        f"It predicts {predicts} from {len(study.used)} columns: {', '.join(column.name for column in study.used)}.",
        f"This site ({terms.site}) takes part with {rows}.",
        "",
        "What leaves this site, at most:",
    ]
    for item in terms.leaving:
        allowed = "" if item.message in terms.allowed else " (refused by the policy of this site)"
        times = "once" if item.times == 1 else f"at most {item.times:,} times"
        count = "1 number" if item.numbers == 1 else f"{item.numbers:,} numbers"
        lines.append(f"  {item.message + ':':<14} {item.content}; {count}, {times}{allowed}")
    total = sum(item.numbers * item.times for item in terms.leaving if item.message != "restored")
    most = next(item.times for item in terms.leaving if item.message in ("improved", "released", "masked"))
    lines += [
        f"  In total at most {total:,} numbers, in at most {most:,} rounds and {terms.runs} different runs.",
        "  The same bytes again, after a restart, do not count. Every message is written to the ledger.",
        "",
        "What is never sent: rows, labels, texts of cells, dual variables, the name and the path of the data file.",
        *terms.protection,
        f"Thresholds of this site: tasks of at least {terms.minimum_rows} rows, at most "
        f"{terms.parameters_per_row:g} weights per row of a task, errors over at least "
        f"{terms.minimum_held_out} rows.",
        *_fold_lines(study, terms),
        _who_receives(study),
    ]
    return "\n".join(lines)


def _fold_lines(study: Study, terms: SiteTerms) -> list[str]:
    """How many rows each fold of the cross-validation has, if there is one."""
    folds = study.fit.folds
    rows = {name: n // folds for name, n in terms.rows.items() if name in terms.fitted}
    if not rows or number_of_fits(study) == 1:
        return []
    lines = [f"Rows in each of {folds} folds, at least: {', '.join(f'{name}: {n:,}' for name, n in rows.items())}."]
    if folds > MOST_FOLDS:
        lines.append(f"This site will refuse the cross-validation: it allows at most {MOST_FOLDS} folds.")
    elif any(n < terms.minimum_held_out for n in rows.values()):
        lines.append("This site will refuse the cross-validation: a fold has too few rows.")
    return lines


def _who_receives(study: Study) -> str:
    coordinator = {
        "weights": "the coordinator keeps the weights of all tasks and their relations",
        "summary": "the coordinator keeps errors and the certificate, but no weights",
    }[study.results.coordinator]
    sites = {"own": "each site gets the weights of its own tasks", "all": "each site gets the weights of all tasks"}
    return f"Results: {coordinator}; {sites[study.results.sites]}."
