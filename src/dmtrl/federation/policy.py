"""The policy of a site: a TOML file that its own people write. No message and no job can change it.

It names the data file and says what may leave. `Site.answer` applies it to every message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation import messages
from dmtrl.federation.study import SITE_NAME
from dmtrl.federation.toml_fields import parse_toml
from dmtrl.protocol.messages import ANSWERS, name_of
from dmtrl.tables.names import nearest

FILE = "policy.toml"
PREPARATION = tuple(name_of(kind) for kind in messages.ANSWERS.values())
ROUNDS = tuple(name_of(kind) for kind in dict.fromkeys(ANSWERS.values()))
MESSAGES = (*PREPARATION, *ROUNDS)  # everything that can leave a site


@dataclass(frozen=True)
class Policy:
    """What may leave a site.

    Attributes
    ----------
    site : str
        The name of the site.
    data : str
        The data file, relative to the folder of the site.
    minimum_rows : int
        Tasks with fewer rows are left out.
    minimum_held_out : int
        Errors leave only as sums over at least this many rows of a task: folds with fewer are refused, and errors on
        fewer held-out rows are left out.
    parameters_per_row : float
        A model may have at most this many weights per row of a task.
    most_rounds : int
        Rounds of all fits of one study.
    most_runs : int
        Runs of one study that differ: with other sites, or with changed data.
    epsilon, delta : float
        The privacy budget: what all private studies together may spend on the rows of the site.
    epsilon_per_study : float
        A private study gets at least the noise of this epsilon, even if it asks for less.
    private_only : bool
        Whether studies that add no noise are refused.
    messages : tuple of str
        The messages that may leave.
    """

    site: str
    data: str
    minimum_rows: int = 10
    minimum_held_out: int = 5
    parameters_per_row: float = 0.33
    most_rounds: int = 20_000
    most_runs: int = 5
    epsilon: float = 8.0
    delta: float = 1e-5
    epsilon_per_study: float = 8.0
    private_only: bool = False
    messages: tuple[str, ...] = MESSAGES

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
    return _checked(path, parse_toml(path.read_bytes(), str(path))[1])


def write_policy(folder: Path, policy: Policy) -> None:
    """Write the policy into the folder of a site, with a comment on every line."""
    listed = "\n".join(f'    "{name}",' for name in policy.messages)
    text = f"""# The policy of this site. Only people at the site change it; no job can.
site = {_quoted(policy.site)}
# The data file, relative to this folder.
data = {_quoted(policy.data)}
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


def _checked(path: Path, content: Mapping[str, Any]) -> Policy:
    known = [field.name for field in fields(Policy)]
    for key in content:
        if key not in known:
            close = nearest(key, known)
            raise ValueError(f"{path}: unknown key {key!r}; " + (f"did you mean {close!r}?" if close else "remove it"))
    for key in ("site", "data"):
        if not isinstance(content.get(key), str) or not content[key]:
            raise ValueError(f"{path}: {key} must be text in quotes")
    if not SITE_NAME.fullmatch(content["site"]):
        raise ValueError(f"{path}: the name of a site may hold letters, digits, - and _ only")
    values: dict[str, Any] = dict(content)
    for key in ("minimum_rows", "minimum_held_out", "most_rounds", "most_runs"):
        number = values.get(key, 1)
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{path}: {key} must be a positive integer, got {number!r}")
    for key in ("parameters_per_row", "epsilon", "delta", "epsilon_per_study"):
        share = values.get(key, 0.1)
        if not isinstance(share, int | float) or isinstance(share, bool) or not share > 0:
            raise ValueError(f"{path}: {key} must be a positive number, got {share!r}")
    if not values.get("delta", 0.1) < 1:
        raise ValueError(f"{path}: delta must be between 0 and 1, got {values['delta']!r}")
    if not isinstance(values.get("private_only", False), bool):
        raise ValueError(f"{path}: private_only must be true or false, got {values['private_only']!r}")
    if "messages" in values:
        unknown = [name for name in values["messages"] if name not in MESSAGES]
        if unknown:
            raise ValueError(f"{path}: unknown message {unknown[0]!r}; the messages are {', '.join(MESSAGES)}")
        values["messages"] = tuple(values["messages"])
    return Policy(**values)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
