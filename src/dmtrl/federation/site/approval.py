"""Approval of a study at a site: what the site's staff read, and which study they approved."""

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from dmtrl import storage
from dmtrl.exceptions import RefusedBySiteError, StudyError
from dmtrl.federation.protection.base import Allowance
from dmtrl.federation.protection.choice import protection_of
from dmtrl.federation.site.budget import Budget
from dmtrl.federation.site.data_check import SiteCheck
from dmtrl.federation.site.policy import Policy, read_policy, write_policy
from dmtrl.federation.study.approval_text import Leaving, SiteTerms
from dmtrl.federation.study.approval_text import approval_text as write_text
from dmtrl.federation.study.study_file import Study, check_site_name, parse_study

STUDY, APPROVAL = "study.toml", "approval.json"


@dataclass(frozen=True)
class Approval:
    """Which study was approved, when, and the text that was shown."""

    study: str
    hash: str
    time: str
    text: str


def create_site(folder: str | Path, name: str, data: str | Path, policy: Policy | None = None) -> Policy:
    """Create the folder of a site with a policy file. The data file may lie anywhere; it is not copied.

    policy: thresholds other than the default ones; its name and data file are replaced.
    """
    folder = Path(folder)
    check_site_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    made = replace(policy or Policy(name, ""), site=name, data=str(Path(data).resolve()))
    write_policy(folder, made)
    return read_policy(folder)


def approve(folder: str | Path, study: Study, text: str) -> Approval:
    """Store the approval of a study by its hash, with a copy of its file. It replaces an earlier approval."""
    folder = Path(folder)
    approval = Approval(study.name, study.hash, datetime.now(UTC).isoformat(timespec="seconds"), text)
    storage.write(str(folder / STUDY), study.source)
    storage.write(str(folder / APPROVAL), json.dumps(asdict(approval), indent=1, ensure_ascii=False).encode())
    return approval


def read_approval(folder: str | Path) -> Approval | None:
    """The approval that a site gave last; None if there is none. ValueError if its file was damaged."""
    path = Path(folder) / APPROVAL
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        return Approval(**{field.name: str(content[field.name]) for field in fields(Approval)})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged; approve the study again") from error


def withdraw(folder: str | Path) -> Approval:
    """Remove the approval of a site, also for a run in progress. Returns what was approved."""
    given = read_approval(folder)
    if given is None:
        raise ValueError(f"no study is approved in {folder}")
    (Path(folder) / APPROVAL).unlink()
    return given


def version_of_approval(folder: Path) -> tuple[int, int] | None:
    """Changes with every approval; None if there is none. Quicker than reading it."""
    try:
        found = (folder / APPROVAL).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def approved_study(folder: Path) -> Study:
    """The approved study; RefusedBySiteError if there is none or if its file was changed after the approval."""
    try:
        given = read_approval(folder)
    except ValueError as error:
        raise RefusedBySiteError("its approval is damaged; the site's staff must approve the study again") from error
    if given is None or not (folder / STUDY).exists():
        raise RefusedBySiteError("no study was approved here; the site's staff must run dmtrl site approve")
    try:
        study = parse_study((folder / STUDY).read_bytes(), str(folder / STUDY))
    except StudyError as error:
        raise RefusedBySiteError("its copy of the study file cannot be read", str(error)) from error
    if study.hash != given.hash:
        raise RefusedBySiteError("the study file was changed after it was approved; approve it again")
    return study


def what_leaves(study: Study, policy: Policy) -> list[Leaving]:
    """Everything that can leave a site in a study. A site does not send more often, or more numbers, than this."""
    rounds = min(study.limits.rounds, policy.most_rounds)
    return protection_of(study).what_leaves(Allowance(len(study.task_names(policy.site)), policy.most_runs, rounds))


def approval_text(study: Study, policy: Policy, check: SiteCheck, folder: Path) -> str:
    """What the staff of a site read before they approve a study. folder: that of the site, which may not exist yet."""
    rows, fitted, data = dict[str, int](), list[str](), check.data
    if data is not None:
        counted = zip(study.task_names(policy.site), data.rows_per_task.tolist(), data.fitted.tolist(), strict=True)
        for name, n, is_fitted in counted:
            if n:
                rows[name] = n
            if is_fitted:
                fitted.append(name)
    budget = Budget(folder, policy.epsilon, policy.delta)
    terms = SiteTerms(
        site=policy.site,
        rows=rows,
        fitted=fitted,
        allowed=policy.messages,
        leaving=what_leaves(study, policy),
        protection=protection_of(study).approval_lines(policy.epsilon_per_study, budget),
        runs=policy.most_runs,
        minimum_rows=policy.minimum_rows,
        minimum_held_out=policy.minimum_held_out,
        parameters_per_row=policy.parameters_per_row,
    )
    return write_text(study, terms)
