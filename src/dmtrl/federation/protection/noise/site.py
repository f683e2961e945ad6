"""How a site makes a private release: once, charged to its budget, and stored before it leaves."""

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.base import Bounds, SiteHalf, SiteSide
from dmtrl.federation.protection.noise.accounting import cost_of
from dmtrl.federation.protection.noise.moments import system_noise
from dmtrl.federation.protection.noise.releases import Exact, Releases, largest_entry, step_size
from dmtrl.federation.study.preparation import are_finite
from dmtrl.federation.study.privacy_terms import MOMENTS
from dmtrl.protocol.study import Release, Released

_FAILED = "it could not make a private release, and makes no further ones in this study"


class NoiseSite(SiteHalf):
    """The private releases of one study at one site. The lock of the site makes several processes take turns."""

    def __init__(self, side: SiteSide):
        self._side, self._study, self._budget = side, side.study, side.budget
        self._epsilon = min(side.study.privacy.epsilon, side.epsilon)
        self._mu = cost_of(side.study.privacy, self._epsilon)
        self.handlers = {Release: self.answer}

    def withheld(self, request: str) -> str:
        return f"the study is private: the answer to {request!r} would leave without noise, and is withheld"

    def admit(self) -> None:
        """Refuse the study if it would exceed the budget."""
        with self._side.locked():
            self._budget.check(self._study.hash, self._mu)

    def _rows(self) -> Blocks:
        """The clipped rows."""
        privacy = self._study.privacy
        return self._side.blocks(Bounds(privacy.row_norm, self._study.target.range))

    def answer(self, request: Release) -> Released:
        """The release that is asked for; the stored one if it was made before.

        Whether the computation succeeds can depend on the rows. It begins after the charge, and the first failure ends
        the releases of the study for good, so that it cannot be provoked again with other points.
        """
        study = self._study
        if not 0 <= request.number < study.privacy.releases:
            raise RefusedBySiteError(f"the study has {study.privacy.releases} releases; the coordinator asked for more")
        with self._side.locked():
            before = self._budget.stored(study.hash, request.number)
            if before is not None:
                return before
            if self._budget.has_failed(study.hash):
                raise RefusedBySiteError(_FAILED)
            rows = self._rows()
            self._check(request, rows)
            point = np.zeros_like(request.point) if study.privacy.mode == MOMENTS else request.point
            self._budget.charge(study.hash, study.name, self._epsilon, study.privacy.delta, self._mu)
            exact = self._exact(rows, point, request.step)
            values, std = exact.with_noise(self._mu, study.privacy.releases, system_noise)
            released = Released(number=request.number, point=point, values=values, std=std)
            self._budget.store(study.hash, released)
            return released

    def _exact(self, rows: Blocks, point: np.ndarray, step: float) -> Exact:
        study = self._study
        label = sum(abs(end) for end in study.target.range or (-0.5, 0.5))  # of targets in the range, also centred
        try:
            exact = Releases(study.privacy, study.loss, rows, label).exact(point, step)
            if not np.isfinite(exact.values).all():
                raise RefusedBySiteError("its numbers at the point of the coordinator are not finite")
        except Exception as error:
            self._budget.store_failure(study.hash)
            raise RefusedBySiteError(_FAILED, f"{_FAILED}: {error}") from error
        return exact

    def _check(self, request: Release, rows: Blocks) -> None:
        most = largest_entry(self._study.target.range)
        if not are_finite(request.point, (rows.n_units, rows.X.shape[1] + 1)) or np.abs(request.point).max() > most:
            raise RefusedBySiteError("the coordinator asked for a release at a point that does not fit the study")
        if request.step != step_size(self._study.privacy, self._study.loss):
            raise RefusedBySiteError("the coordinator asked for a release with another step size than the study")
