"""The policy of a site: a TOML file that its staff write. No message and no job can change it.

It names the data file and says what may leave. `Site.answer` applies it to every message.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.study.study_file import SITE_NAME
from dmtrl.federation.study.toml_fields import TomlTable, parse_toml, to_toml
from dmtrl.protocol.codec import ANSWER_NAMES, name_of
from dmtrl.protocol.rounds import Moments, SharedUsed

FILE = "policy.toml"
_OF_SHARED_PARTS = (name_of(Moments), name_of(SharedUsed))  # no study fits a shared part
# Everything that can leave a site.
MESSAGES = tuple(name for name in dict.fromkeys(ANSWER_NAMES.values()) if name not in _OF_SHARED_PARTS)


@dataclass(frozen=True)
class Policy:
    """What may leave a site."""

    site: str
    data: str  # the data file, relative to the folder of the site
    minimum_rows: int = 10  # tasks with fewer rows are left out
    minimum_held_out: int = 5  # folds with fewer rows are refused; errors on fewer held-out rows do not leave
    parameters_per_row: float = 0.33  # weights of a model per row of a task, at most
    most_rounds: int = 20_000  # of all fits of one study
    most_runs: int = 5  # of one study that differ: with other sites, or with changed data
    epsilon: float = 8.0  # with delta: what all private studies together may spend on the rows of the site
    delta: float = 1e-5
    epsilon_per_study: float = 8.0  # a private study gets at least the noise of this epsilon, even if it asks for less
    private_only: bool = False  # whether studies that add no noise are refused
    messages: tuple[str, ...] = MESSAGES  # that may leave

    def check_rows(self, task: str, rows: int, weights: int) -> None:
        """Refuse a model with too many weights for the rows of a task."""
        if weights > self.parameters_per_row * rows:
            raise RefusedBySiteError(
                f"a model with {weights} weights is too large for the task {task!r}: this site allows "
                f"{self.parameters_per_row:g} weights per row"
            )

    def check_message(self, name: str) -> None:
        """Refuse a message that may not leave."""
        if name not in self.messages:
            raise RefusedBySiteError(f"the policy of this site does not allow the message {name!r}")


def read_policy(folder: Path) -> Policy:
    """The policy in the folder of a site."""
    path = folder / FILE
    if not path.exists():
        raise FileNotFoundError(f"{folder} is not the folder of a site: it has no {FILE}")
    return _checked(parse_toml(path.read_bytes(), str(path)))


def write_policy(folder: Path, policy: Policy) -> None:
    """Write the policy into the folder of a site, with a comment on every line."""
    listed = "\n".join(f'    "{name}",' for name in policy.messages)
    text = f"""# The policy of this site. Only the site's staff change it; no job can.
site = {to_toml(policy.site)}
# The data file, relative to this folder.
data = {to_toml(policy.data)}
# Tasks with fewer rows are left out of every study.
minimum_rows = {policy.minimum_rows}
# Errors leave only as sums over at least this many rows of a task.
minimum_held_out = {policy.minimum_held_out}
# A model may have at most this many weights per row of a task.
parameters_per_row = {policy.parameters_per_row}
# Rounds of all fits of one study.
most_rounds = {policy.most_rounds}
# Runs of one study that differ: with other sites, or with changed data.
most_runs = {policy.most_runs}
# The privacy budget of all private studies together, and the most that one of them gets.
epsilon = {policy.epsilon}
delta = {policy.delta}
epsilon_per_study = {policy.epsilon_per_study}
# Whether studies that add no noise are refused.
private_only = {str(policy.private_only).lower()}
# The messages that may leave. Remove one to refuse it.
messages = [
{listed}
]
"""
    (folder / FILE).write_text(text, encoding="utf-8")


def _checked(table: TomlTable) -> Policy:
    table.require_known([field.name for field in fields(Policy)])
    values: dict[str, Any] = {"site": table.text("site"), "data": table.text("data")}
    for name, default in vars(Policy("", "")).items():
        if isinstance(default, bool):
            values[name] = table.flag(name, default)
        elif isinstance(default, int):
            values[name] = table.whole(name, default, 1)
        elif isinstance(default, float):
            values[name] = table.positive(name, default=default)
    if not SITE_NAME.fullmatch(values["site"]):
        table.fail("the name of a site may hold letters, digits, - and _ only", "site")
    if not values["data"]:
        table.fail("data must name a file", "data")
    if not values["delta"] < 1:
        table.fail(f"delta must be between 0 and 1, got {values['delta']!r}", "delta")
    values["messages"] = table.texts("messages", MESSAGES)
    for name in values["messages"]:
        if name not in MESSAGES:
            table.fail(f"unknown message {name!r}; the messages are {', '.join(MESSAGES)}", "messages")
    return Policy(**values)
