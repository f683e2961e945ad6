"""Approval of a study at a site: what the site's staff read, and which study they approved."""

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from dmtrl import storage
from dmtrl.exceptions import RefusedBySiteError, StudyError
from dmtrl.federation.protection.noise.releases import release_size
from dmtrl.federation.protection.plain.request_checks import MOST_FOLDS
from dmtrl.federation.site.budget import Budget
from dmtrl.federation.site.data_check import SiteCheck
from dmtrl.federation.site.policy import Policy, read_policy, write_policy
from dmtrl.federation.study import models
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


@dataclass(frozen=True)
class Leaving:
    """One kind of message that leaves a site: what is in it, how many numbers, and how often at most."""

    message: str
    content: str
    numbers: int
    times: int


def what_leaves(study: Study, policy: Policy) -> list[Leaving]:
    """Everything that can leave a site in a study. A site does not send more often, or more numbers, than this."""
    tasks = len(study.task_names(policy.site))
    moments = sum(column.moments for column in study.used)
    levels = sum(len(column.levels) + 2 for column in study.used if column.kind == "category")
    d, runs = most_features(study), policy.most_runs
    most, fits = min(study.limits.rounds, policy.most_rounds), runs * number_of_fits(study)
    folds = runs * (study.fit.folds + 2)
    begun = Leaving("begun", "the numbers of features and tasks; a digest of the request", 2, runs)
    no_errors = Leaving("finished", "zeros: errors stay here", 4 * tasks, runs)
    if study.privacy.private:
        content = f"per task: {_RELEASED[study.privacy.mode]}, with noise; and the point that was asked for"
        size = release_size(study.privacy, study.loss, study.declared_features)
        numbers = tasks * (size + study.declared_features + 2) + 1
        return [
            Leaving("welcome", "per task: its rows", 2 * tasks, runs),
            begun,
            Leaving("released", content, numbers, study.privacy.releases),
            no_errors,
        ]
    if study.privacy.masked:
        content = "integers that are random by themselves; only sums over all sites can be read"
        numbers = 2 * (7 + d * (d + 1) + 2 * d + 2 * moments + levels) + 1
        published = study.results.coordinator == "weights"
        weights = "per task: its final weights" if published else "nothing"
        return [
            Leaving("welcome", "per task: whether it takes part", 2 * tasks, runs),
            Leaving("shared_key", "a public key", 32, most),
            Leaving("masked", content, numbers, 2 * most + 10 * runs),
            begun,
            Leaving("published", weights, tasks * (d + 1), runs if published else 0),
            no_errors,
        ]
    return [
        Leaving("welcome", "per task: its rows, and whether all have one class", 2 * tasks, runs),
        Leaving("cell_counts", "per column: present cells, their sum; rows per level", 2 * moments + levels, runs),
        Leaving("spread", "per column: the sum of squared distances from the mean", moments, runs),
        Leaving("feature_sums", "the sum of each prepared feature and of the target", d + 1, runs),
        Leaving("norms", "the sum of squared distances from the means, for features and target", 2, runs),
        begun,
        Leaving("description", "per task: rows and sum of weights; a digest of the rows", 4 * tasks + 4, folds),
        Leaving("prepared", "per task: a vector b and sums of the loss", tasks * (d + 5), fits),
        Leaving("improved", "per task: a vector b and sums of the loss", tasks * (d + 7), most),
        Leaving("scores", "per task: sums of errors over rows held out for choosing lambda", 4 * tasks, fits),
        Leaving("saved", "the name of a checkpoint file that stays here", 0, most),
        Leaving("restored", "after a restart, per task: the last vector b again", tasks * (d + 1), most),
        Leaving("finished", "per task: sums of errors over its held-out rows", 4 * tasks, runs),
    ]


_RELEASED = {
    "moments": "second moments of its rows",
    "newton": "slope and curvature of its loss",
    "rounds": "a vector b",
}


def most_features(study: Study) -> int:
    """The largest number of features that the columns can become."""
    return sum(column.moments + 1 if column.moments else len(column.levels) + 2 for column in study.used)


def number_of_fits(study: Study) -> int:
    """Fits of the cross-validation, and the final one."""
    model = models.unfitted(study, 1.0)
    if not hasattr(model, "lambdas"):
        return 1
    return len(model.lambdas) * len(model.commons) * study.fit.folds + 1


def approval_text(study: Study, policy: Policy, check: SiteCheck, folder: Path) -> str:
    """In plain words: what the study does, what leaves this site, and what does not. folder: that of the site, which
    may not exist yet."""
    target, data = study.target, check.data
    predicts = f"{target.column!r}"
    if study.classification:
        negative, positive = study.class_names
        predicts += f" ({positive} against {negative})"
    rows = "no rows"
    if data is not None:
        counted = zip(study.task_names(policy.site), data.rows_per_task, strict=True)
        rows = ", ".join(f"{name}: {int(n):,} rows" for name, n in counted if n)
    lines = [
        f"Study {study.name!r}, hash {study.hash}",
        *([study.description] if study.description else []),
        f"It predicts {predicts} from {len(study.used)} columns: {', '.join(column.name for column in study.used)}.",
        f"This site ({policy.site}) takes part with {rows}.",
        "",
        "What leaves this site, at most:",
    ]
    leaving = what_leaves(study, policy)
    for item in leaving:
        allowed = "" if item.message in policy.messages else " (refused by the policy of this site)"
        times = "once" if item.times == 1 else f"at most {item.times:,} times"
        count = "1 number" if item.numbers == 1 else f"{item.numbers:,} numbers"
        lines.append(f"  {item.message + ':':<14} {item.content}; {count}, {times}{allowed}")
    total = sum(item.numbers * item.times for item in leaving if item.message != "restored")
    most = next(item.times for item in leaving if item.message in ("improved", "released", "masked"))
    lines += [
        f"  In total at most {total:,} numbers, in at most {most:,} rounds and {policy.most_runs} different runs.",
        "  The same bytes again, after a restart, do not count. Every message is written to the ledger.",
        "",
        "What is never sent: rows, labels, texts of cells, dual variables, the name and the path of the data file.",
        *_privacy_lines(study, policy, folder),
        f"Thresholds of this site: tasks of at least {policy.minimum_rows} rows, at most "
        f"{policy.parameters_per_row:g} weights per row of a task, errors over at least "
        f"{policy.minimum_held_out} rows.",
        *_fold_lines(study, policy, check),
        _who_receives(study),
    ]
    return "\n".join(lines)


def _privacy_lines(study: Study, policy: Policy, folder: Path) -> list[str]:
    """The guarantee in one sentence, and what it costs; or that there is none."""
    privacy = study.privacy
    if privacy.private:
        budget = Budget(folder, policy.epsilon, policy.delta)
        return [
            f"Privacy: {privacy.guarantee(policy.epsilon_per_study)}",
            f"Mode {privacy.mode!r}: rows are shortened to the norm {privacy.row_norm:g}.",
            f"Privacy budget of this site, for all private studies together: {budget.describe()}.",
            budget.describe_after(study.hash, privacy.mu(policy.epsilon_per_study)),
            "If a release cannot be computed, the site makes no further ones in the study; the coordinator learns",
            "that, and noise does not cover it.",
        ]
    if privacy.masked:
        return [
            "Privacy: no noise is added, but the server reads only sums over all sites, of which there are at least "
            f"{study.limits.sites}.",
            "That holds if the server relays the keys of the sites unchanged. Sums are not private by themselves: the",
            "server and the other sites together can compute the numbers of this site. If a site is lost, the study",
            "ends; another run without it would show its numbers as the difference of the sums.",
        ]
    return [
        "Privacy: no noise is added. Sums and vectors b are not private by themselves: a malicious coordinator can",
        "compute single rows and their labels from them, and no check at this site excludes that.",
        "Approve only if you trust the operator of the server as if they saw the rows.",
    ]


def _fold_lines(study: Study, policy: Policy, check: SiteCheck) -> list[str]:
    """How many rows each fold of the cross-validation has, if there is one."""
    data, folds = check.data, study.fit.folds
    if data is None or number_of_fits(study) == 1:
        return []
    counted = zip(study.task_names(policy.site), data.rows_per_task // folds, data.fitted, strict=True)
    rows = {name: int(n) for name, n, fitted in counted if fitted}
    lines = [f"Rows in each of {folds} folds, at least: {', '.join(f'{name}: {n:,}' for name, n in rows.items())}."]
    if folds > MOST_FOLDS:
        lines.append(f"This site will refuse the cross-validation: it allows at most {MOST_FOLDS} folds.")
    elif any(n < policy.minimum_held_out for n in rows.values()):
        lines.append("This site will refuse the cross-validation: a fold has too few rows.")
    return lines if rows else []


def _who_receives(study: Study) -> str:
    coordinator = {
        "weights": "the coordinator keeps the weights of all tasks and their relations",
        "summary": "the coordinator keeps errors and the certificate, but no weights",
    }[study.results.coordinator]
    sites = {"own": "each site gets the weights of its own tasks", "all": "each site gets the weights of all tasks"}
    return f"Results: {coordinator}; {sites[study.results.sites]}."
