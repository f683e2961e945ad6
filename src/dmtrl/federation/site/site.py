"""A site answers the messages of the study that its staff approved, as far as its policy allows.

The folder of a site holds `policy.toml` (written by the site's staff), `study.toml` and `approval.json` (the study that
they approved), `ledger.jsonl` (what left), `run/` (the prepared problem and checkpoints with dual variables, which
never leave) and `results/` (its model). A `Site` keeps nothing else: a new one in the same folder that receives the
same messages gives the same answers, to the bit.
"""

import logging
from pathlib import Path

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.site.data_check import SiteTable
from dmtrl.federation.site.gate import LEDGER as LEDGER
from dmtrl.federation.site.gate import Gate
from dmtrl.federation.site.ledger import Ledger
from dmtrl.federation.site.participation import Participation
from dmtrl.federation.site.policy import Policy, read_policy
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.codec import ANSWER_NAMES
from dmtrl.protocol.message import Message

logger = logging.getLogger("dmtrl")


class Site:
    """A site in its folder, which `create_site` made."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.policy: Policy = read_policy(self.folder)
        self.gate = Gate(self.folder, self.policy)
        self._current: Participation | None = None

    @property
    def name(self) -> str:
        return self.policy.site

    @property
    def ledger(self) -> Ledger:
        return self.gate.ledger

    @property
    def study(self) -> Study:
        """The approved study. RefusedBySiteError if there is none, or if its file was changed after the approval."""
        return self.gate.study

    @property
    def data(self) -> SiteTable:
        """The rows of the site, checked against the study. RefusedBySiteError if they do not fit."""
        return self.participation.problem.data

    @property
    def participation(self) -> Participation:
        """The part of this site in the approved study. What belongs to a study before is dropped."""
        study = self.gate.study
        if self._current is None or self._current.study.hash != study.hash:
            self._current = Participation(self.folder, self.policy, self.gate, study)
        return self._current

    def answer(self, message: Message) -> Message:
        """Answer any message of a study, and write what leaves into the ledger first.

        Raises
        ------
        RefusedBySiteError
            If the approval, the policy or the data do not allow an answer. Its `reason` may leave the site.
        """
        study = ""
        try:
            participation = self.participation
            study = participation.study.hash
            if message.name not in ANSWER_NAMES:
                raise RefusedBySiteError("the coordinator sent a message that this version of dmtrl does not answer")
            self.policy.check_message(ANSWER_NAMES[message.name])
            answer = participation.answer(message)
            self.gate.release(study, answer)
        except RefusedBySiteError as refusal:
            self.gate.refuse(study, refusal)
            raise
        except Exception as error:  # its text may quote the data
            logger.exception("%s could not answer %r", self.name, message.name)
            reason = f"{type(error).__name__} while it answered {message.name!r}; the log of the site has the details"
            failure = RefusedBySiteError(reason, f"{type(error).__name__}: {error}")
            self._current = None  # what is in memory may be half done; the folder has the last complete state
            self.gate.refuse(study, failure)
            raise failure from error
        return answer

    def refuse_job(self, reason: str) -> None:
        """Record that a job of the server was not started."""
        self.gate.refuse("", RefusedBySiteError(reason))
