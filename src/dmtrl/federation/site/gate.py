"""The gate of a site: which study is approved, and what may leave it. Everything that leaves is in the ledger first."""

import logging
from pathlib import Path

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.site.approval import approved_study, version_of_approval, what_leaves
from dmtrl.federation.site.ledger import Ledger, numbers_in
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.study.approval_text import Leaving
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.message import Message

LEDGER = "ledger.jsonl"
MOST_REFUSALS = 1000  # lines about refusals in the ledger, for each study
_LONGEST_REASON = 500  # characters of such a line: a refusal may quote what the coordinator sent
logger = logging.getLogger("dmtrl")


class Gate:
    """The approval, the policy and the ledger in the folder of a site."""

    def __init__(self, folder: Path, policy: Policy):
        self._folder, self._policy, self.ledger = folder, policy, Ledger(folder / LEDGER)
        self._study: Study | None = None
        self._approved: tuple[int, int] | None = None  # the version of the approval that `_study` was read with
        self._most: tuple[str, dict[str, Leaving]] = "", {}  # a study, and what each message may hold and how often

    @property
    def study(self) -> Study:
        """The approved study. RefusedBySiteError if there is none, or if its file was changed after the approval."""
        given = version_of_approval(self._folder)
        if self._study is None or given != self._approved:  # it may be withdrawn or replaced during a run
            self._study, self._approved = approved_study(self._folder), given
        return self._study

    def require_approved(self, study: str) -> None:
        """Refuse any other study than the one that is approved now."""
        if study != self.study.hash:
            raise RefusedBySiteError(
                f"the study with the hash {study[:16]} was not approved here; the approved one has the hash "
                f"{self.study.hash[:16]}"
            )

    def check_leaving(self, answer: Message) -> None:
        """Refuse to send more than the approval says. The same bytes again tell nothing new."""
        study = self.study
        if self._most[0] != study.hash:
            self._most = study.hash, {item.message: item for item in what_leaves(study, self._policy)}
        most = self._most[1].get(answer.name)
        if most is None:
            raise RefusedBySiteError(f"the message {answer.name!r} was not announced when the study was approved")
        if numbers_in(answer) > most.numbers:
            raise RefusedBySiteError(f"the message {answer.name!r} may hold at most {most.numbers:,} numbers")
        if self.ledger.times(study.hash, answer.name) >= most.times and not self.ledger.has_left(answer):
            raise RefusedBySiteError(f"the message {answer.name!r} may leave this site at most {most.times:,} times")

    def release(self, study: str, answer: Message) -> None:
        """Write an answer into the ledger, after the last checks. It may leave then."""
        with self.ledger.locked():  # the number of messages is that of the line that follows
            self.require_approved(study)  # still: the staff may have approved another one meanwhile
            self.check_leaving(answer)
            self.ledger.record(study, answer)

    def refuse(self, study: str, refusal: RefusedBySiteError) -> None:
        """Write a line about a refusal, as long as there are not too many: a coordinator could fill the disk."""
        reason, detail = refusal.reason[:_LONGEST_REASON], (refusal.detail or refusal.reason)[:_LONGEST_REASON]
        written = self.ledger.refusals(study)
        if written < MOST_REFUSALS:
            logger.warning("%s refused: %s", self._policy.site, detail)
            last = "; further refusals of this study are not recorded" if written == MOST_REFUSALS - 1 else ""
            self.ledger.record_refusal(study, reason + last)
