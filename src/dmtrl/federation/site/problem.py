"""A study at a site: its rows, checked against the study, and the prepared problem, which is kept on the disk."""

import hashlib
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl import storage
from dmtrl.data.blocks import Blocks
from dmtrl.data.coordinates import Coordinates
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.base import Bounds, Protection
from dmtrl.federation.site.budget import Budget
from dmtrl.federation.site.data_check import SiteTable, check_file
from dmtrl.federation.site.gate import Gate
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.rows import blocks_of
from dmtrl.federation.study import preparation
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.tables.preparation import Preparation


class SiteProblem:
    """What a site offers to the protection of a study: see `protection/base.py: SiteSide`."""

    def __init__(self, folder: Path, policy: Policy, gate: Gate, protection: Protection):
        self.folder, self.policy, self.gate, self.study = folder, policy, gate, protection.study
        self._protection = protection
        self._data: SiteTable | None = None
        self._begun: messages.Begin | None = None

    @property
    def epsilon(self) -> float:
        return self.policy.epsilon_per_study

    @property
    def minimum_held_out(self) -> int:
        return self.policy.minimum_held_out

    @property
    def budget(self) -> Budget:
        return Budget(self.folder, self.policy.epsilon, self.policy.delta)

    def locked(self) -> AbstractContextManager[Any]:
        return self.gate.ledger.locked()

    @property
    def data(self) -> SiteTable:
        """The rows of the site, checked against the study. RefusedBySiteError if they do not fit."""
        if self._data is None:
            path = self.folder / self.policy.data
            if not path.exists():
                raise RefusedBySiteError("its data file does not exist", f"{path} does not exist")
            check = check_file(self.study, path, self.policy.minimum_rows)
            if check.data is None:
                first = check.errors[0]
                what = f": {first.public}" if self._protection.tells_findings else ""
                raise RefusedBySiteError(f"its file does not fit the study{what}", first.text)
            self._data = check.data
        return self._data

    def rows(self) -> int:
        return int(self.data.rows_per_task.sum())

    def statistics(self, request: Any) -> Any:
        """The sums of this site that a request for statistics asks for."""
        study = self.study
        if isinstance(request, messages.CountCells):
            return preparation.cell_counts(study, self.data.train_table)
        if isinstance(request, messages.MeasureSpread):
            return preparation.spread(study, self.data.train_table, request.means)
        X = self._features(request.preparation)
        if isinstance(request, messages.SumFeatures):
            return preparation.feature_sums(X, self.data.train_y)
        preparation.check_centres(study, X.shape[1], request.x_centre, request.y_centre)
        return preparation.norms(X, self.data.train_y, request.x_centre, request.y_centre)

    def _preparation(self, text: str) -> Preparation:
        """The preparation of a message, checked before features are computed."""
        prepared = preparation.from_json(text)
        preparation.check_against(self.study, prepared)
        return prepared

    def _features(self, text: str) -> np.ndarray:
        """The prepared features of the fit, sorted by task."""
        return self._preparation(text).transform(self.data.train_table)

    def check(self, begin: messages.Begin) -> None:
        """Refuse a problem that does not fit the study, the policy or the tasks of this site."""
        self.gate.require_approved(begin.study)
        data, numbers = self.data, begin.numbers
        if numbers.shape != data.fitted.shape or ((numbers >= 0) != data.fitted).any():
            raise RefusedBySiteError("the coordinator numbered other tasks than those that this site takes part with")
        width = len(self._preparation(begin.preparation).feature_names)
        preparation.check_coordinates(self.study, width, preparation.coordinates_from(begin))
        self._protection.check_problem(begin)
        names, counts = self.study.task_names(self.policy.site), data.rows_per_task
        for i in np.flatnonzero(data.fitted):
            self.policy.check_rows(names[i], int(counts[i]), width + 1)

    @property
    def _stored(self) -> Path:
        return self.folder / "run" / "begin.message"

    def store(self, begin: messages.Begin) -> None:
        """Store a checked problem in place of the one before. Checkpoints of another problem are removed."""
        content = encode(begin).encode()
        if not self._stored.exists() or self._stored.read_bytes() != content:
            shutil.rmtree(self._stored.parent, ignore_errors=True)
            self._stored.parent.mkdir(parents=True)
            storage.write(str(self._stored), content)
        self._begun = begin

    @property
    def begun(self) -> messages.Begin:
        """The prepared problem, from the disk after a restart."""
        if self._begun is None:
            if not self._stored.exists():
                raise RefusedBySiteError("no study has begun here; the coordinator must send 'begin' before rounds")
            begun = decode(Message.decode(self._stored.read_bytes()))
            self.check(begun)
            self._begun = begun
        return self._begun

    def coordinates(self) -> Coordinates:
        return preparation.coordinates_from(self.begun)

    def blocks(self, bounds: Bounds | None = None, begin: messages.Begin | None = None) -> Blocks:
        """The rows of a problem that `check` accepted."""
        begin = begin or self.begun
        return blocks_of(self.study, self.policy.site, self.data, begin, self._features(begin.preparation), bounds)


def digest(begin: messages.Begin) -> str:
    """Tells problems apart: each counts as a run."""
    return hashlib.sha256(encode(begin).encode()).hexdigest()
