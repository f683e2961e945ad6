"""The worker of a site, outside the rounds of `solve`."""

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.protocol.rounds import Prepare
from dmtrl.solver.settings import Settings


def first_request(blocks: Blocks, settings: Settings, ridge: float | None, first_step: float = np.inf) -> Prepare:
    """What begins a run of a worker with these rows, from dual variables zero. ridge: on the intercepts;
    None: they are treated like features."""
    return Prepare(
        seed=settings.seed,
        local_solver=settings.local_solver,
        sampling=settings.sampling,
        max_passes=settings.max_passes,
        keep=False,
        density=1.0,
        first_step=first_step,
        intercept=True,
        intercept_ridge=None if ridge is None else np.full(blocks.n_units, ridge),
        total_weight=np.diff(blocks.starts).astype(float),
        steps=np.zeros(blocks.n_units, dtype=np.int64),
    )
