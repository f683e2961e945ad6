"""A site's half without protection: statistics, and a worker that answers the rounds of `solve`."""

import logging
import re
import shutil
from pathlib import Path
from typing import Any

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.base import SiteHalf, SiteSide
from dmtrl.federation.protection.plain.request_checks import check_folds, check_request
from dmtrl.protocol import rounds, study
from dmtrl.worker.worker import Worker

_VERSION = re.compile(r"version-[0-9]{6,}-[0-9a-f]{8}")  # a folder of a checkpoint; see solver/checkpoint/versions.py
_ROUNDS = (rounds.Describe, rounds.Prepare, rounds.Round, rounds.Score)  # a site answers what is listed, no more
logger = logging.getLogger("dmtrl")


class PlainSite(SiteHalf):
    def __init__(self, side: SiteSide):
        self._side = side
        self._worker: Worker | None = None
        asked = (study.CountCells, study.MeasureSpread, study.SumFeatures, study.MeasureNorms)
        self.handlers = {
            **{request: side.statistics for request in asked},
            **{request: self._round for request in _ROUNDS},
            rounds.HoldOut: self._hold_out,
            rounds.Save: self._save,
            rounds.Restore: self._restore,
        }

    def withheld(self, request: str) -> str:
        return f"the coordinator sent {request!r}, but the study neither adds noise nor has masked sums"

    def open(self, begin: study.Begin) -> None:
        has_tasks = bool((begin.numbers >= 0).any())
        self._worker = Worker(self._side.blocks(begin=begin), self._side.study.loss) if has_tasks else None

    @property
    def worker(self) -> Worker:
        """The worker with the rows of the prepared problem, from the disk after a restart."""
        if self._worker is None:
            self._worker = Worker(self._side.blocks(), self._side.study.loss)
        return self._worker

    def _held(self) -> rounds.Description:
        held: rounds.Description = self.worker.handle(rounds.Describe())
        return held

    def _round(self, request: Any) -> Any:
        check_request(self._side.study, self._held(), request)
        return self.worker.handle(request)

    def _hold_out(self, request: rounds.HoldOut) -> Any:
        check_folds(self._side.study, self._held(), request, self._side.minimum_held_out)
        return self.worker.handle(request)

    def _checkpoint(self, folder: str) -> Path:
        """The folder of a checkpoint at this site, from the coordinator's name for it."""
        name = re.split(r"[/\\]", folder)[-1]
        if not _VERSION.fullmatch(name):
            raise RefusedBySiteError("the coordinator named a checkpoint folder that is not one")
        return self._side.folder / "run" / "checkpoint" / name

    def _save(self, request: rounds.Save) -> rounds.Saved:
        """Write the checkpoint into the site's own folder, and keep only it and the last complete one."""
        folder = self._checkpoint(request.to)
        saved = self.worker.handle(rounds.Save(to=str(folder)))
        if saved.error is not None:
            logger.warning("a checkpoint could not be written: %s", saved.error)
            return rounds.Saved(error="this site could not write its checkpoint", kept=True)
        keep = {folder.name, self._checkpoint(request.last).name if request.last else ""}
        for old in folder.parent.iterdir():
            if old.name not in keep and _VERSION.fullmatch(old.name):
                shutil.rmtree(old, ignore_errors=True)
        return rounds.Saved(file=saved.file, kept=True)

    def _restore(self, request: rounds.Restore) -> Any:
        return self.worker.handle(rounds.Restore(source=str(self._checkpoint(request.source))))
