"""The part that a site takes in one study: the requests that every study has, and those of its protection."""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.base import SiteHalf
from dmtrl.federation.protection.choice import protection_of
from dmtrl.federation.site.finish import Finisher
from dmtrl.federation.site.gate import Gate
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.problem import SiteProblem, digest
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol import PROTOCOL
from dmtrl.protocol.codec import KINDS, decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.study import Begin, Begun, Finish, Hello, Welcome


class Participation:
    """Answers the requests of one approved study. What it keeps in memory it can make again from the folder."""

    def __init__(self, folder: Path, policy: Policy, gate: Gate, study: Study):
        self.study, self._policy, self._gate = study, policy, gate
        self._protection = protection_of(study)
        self.problem = SiteProblem(folder, policy, gate, self._protection)
        self.half: SiteHalf = self._protection.site(self.problem)
        finisher = Finisher(self.problem, self.half, self._protection)
        self._handlers: Mapping[type, Callable[[Any], Any]] = {
            **self.half.handlers,
            Hello: self._hello,
            Begin: self._begin,
            Finish: finisher.finish,
        }

    def answer(self, message: Message) -> Message:
        """The answer to a request, which is decoded here and nowhere else."""
        handler = self._handlers.get(KINDS[message.name])
        if handler is None:
            raise RefusedBySiteError(self.half.withheld(message.name))
        try:
            request = decode(message)
        except ValueError as error:
            raise RefusedBySiteError(f"the coordinator sent something that this site cannot read: {error}") from None
        if hasattr(request, "study"):
            self._gate.require_approved(request.study)
        return encode(handler(request))

    def _hello(self, request: Hello) -> Welcome:
        if request.protocol != PROTOCOL:
            raise RefusedBySiteError(
                f"it has the protocol number {PROTOCOL} (dmtrl {version('dmtrl')}), but the coordinator has "
                f"{request.protocol} (dmtrl {request.dmtrl}); install versions of dmtrl with the same number"
            )
        if self._policy.private_only and not self._protection.noisy:
            raise RefusedBySiteError("the policy of this site allows only studies that add noise")
        self.half.admit()
        data = self.problem.data
        rows = self.half.told_rows(data.rows_per_task.astype(np.int64))
        single = np.where(data.usable, data.single, 0)
        return Welcome(protocol=PROTOCOL, dmtrl=version("dmtrl"), rows=rows, single=single)

    def _begin(self, request: Begin) -> Begun:
        """Check the prepared problem, and only then store it in place of the one before."""
        self.problem.check(request)
        units = int((request.numbers >= 0).sum())
        answer = Begun(features=len(request.x_centre), units=units, problem=digest(request))
        self._gate.check_leaving(encode(answer))
        self.half.open(request)
        self.problem.store(request)
        return answer
