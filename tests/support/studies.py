"""Small studies: files of three sites with numbers, categories, dates and holes, and a study file that fits them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dmtrl.federation.site.approval import approve, create_site
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study.draft import DraftRequest, draft_study
from dmtrl.federation.study.study_file import Study, parse_study
from support.shell_data import write

SITES = ("north", "south", "west")

CLINIC = """format = 1
name = "clinic"

[target]
column = "ill"
kind = "classification"
negative = ["no"]
positive = ["yes"]

[fit]
loss = "logistic"
lambda = [0.3, 0.03]
common = [0.0, 1.0]
folds = 3

[columns.age]
kind = "number"
range = [0, 120]

[columns.dose]
kind = "number"

[columns.ward]
kind = "category"
levels = ["a", "b", "c", "rare"]

[columns.day]
kind = "date"
range = [2020-01-01, 2022-12-31]

[columns.remark]
kind = "ignored"
"""


def clinic(text: str = CLINIC, **replaced: str) -> Study:
    """The study, with some texts of its file replaced: clinic(old="new") is for words without blanks."""
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return parse_study(text.encode(), "clinic.toml")


def draft(like: Path, name: str, target: str, notes: list[str] | None = None, **options: Any) -> Study:
    """A draft of a study. notes: remarks are appended."""
    study, remarks = draft_study(DraftRequest(str(like), target, **options), name)
    if notes is not None:
        notes += remarks
    return study


def clinic_table(site: int, rows: int = 60) -> pa.Table:
    """The rows of one site; each site has its own share of ill people and its own effect of the dose."""
    rng = np.random.default_rng(site)
    age, dose = rng.normal(50, 15, rows).round(1), rng.normal(0, 1 + site, rows).round(3)
    ward = rng.choice(["a", "b", "c"], rows).astype(object)
    ward[0] = "rare"
    days = rng.integers(0, 1000, rows)
    score = 0.08 * (age - 50) + (1 + 0.5 * site) * dose / (1 + site) + (ward == "b") + rng.normal(0, 0.7, rows)
    return pa.table({
        "age": pa.array(age, mask=rng.random(rows) < 0.1),
        "dose": pa.array(dose),
        "ward": pa.array(ward.tolist(), mask=rng.random(rows) < 0.1),
        "day": pa.array((np.datetime64("2020-01-01") + days).astype("datetime64[D]")),
        "remark": pa.array([f"remark {i}" for i in range(rows)]),
        "wing": pa.array(rng.choice(["left", "right"], rows).tolist()),
        "test": pa.array((np.arange(rows) % 4 == 0).astype(int)),
        "ill": pa.array(np.where(score > 0.2 * site, "yes", "no").tolist()),
        "cost": pa.array((3 * score + 10).round(3)),
    })  # fmt: skip


def clinic_files(folder: Path, rows: int = 60) -> dict[str, Path]:
    """A CSV file for each site."""
    return {name: write(clinic_table(i, rows), folder / f"{name}.csv") for i, name in enumerate(SITES)}


def approved_site(folder: Path, study: Study, name: str, data: Path, policy: Policy | None = None) -> Site:
    """A site that has approved a study."""
    create_site(folder, name, data, policy)
    approve(folder, study, "approved in a test")
    return Site(folder)


def approved_sites(folder: Path, study: Study, files: Mapping[str, Path]) -> list[Path]:
    """The folders of sites that have approved a study."""
    return [approved_site(folder / name, study, name, files[name]).folder for name in sorted(files)]
