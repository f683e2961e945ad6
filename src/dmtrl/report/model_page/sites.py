"""The section of a model's page about the sites of a federated study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmtrl.report.content import Section, Table, Text
from dmtrl.report.theme import literal

COLUMNS = {
    "site": "site",
    "task": "name",
    "rows, rounded down": "rows",
    "error, cross-validation": "cv_error",
    "held-out rows, rounded down": "held_out_rows",
    "error, held out": "error",
}


def site_section(study: Mapping[str, Any]) -> Section:
    """Rows and errors of the tasks of each site. study: `model.study_`, a StudyResult as plain values."""
    left_out = f" Left out because they did not respond: {literal(', '.join(study['lost']))}." if study["lost"] else ""
    return Section(
        "Sites",
        [
            Text(
                f"The study {literal(study['study'])} (hash {study['hash'][:16]}) ran at {len(study['sites'])} sites. "
                f"No row left its site; every error was computed at the site that holds the rows.{left_out}"
            ),
            Text(f"**Privacy.** {literal(study['privacy'])}"),
            Table(
                "Tasks of each site",
                list(COLUMNS),
                [[task[key] for key in COLUMNS.values()] for task in study["tasks"]],
                "Numbers of rows are rounded down to a multiple of the threshold of the study. Errors are error rates "
                "for classes and mean squared errors for numbers.",
            ),
        ],
    )
