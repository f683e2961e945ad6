"""Compiled code is made, or fetched from where it was kept, before anybody waits for it.

Room: engines.
"""

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks, Source
from dmtrl.losses import AnyLoss, CustomLoss
from dmtrl.protocol.message import Message, Scalar
from dmtrl.worker.rows import CHUNK
from dmtrl.worker.worker import Worker

_WIDTH = 4 * CHUNK  # features, from which on chunks are counted


def warm_up(sources: Sequence[Source], losses: AnyLoss | Sequence[AnyLoss]) -> None:
    """For rows and losses like these. Actors that compiled at the same moment would get in each other's way."""
    kinds = {(np.dtype(float), False)}
    for source in sources:
        if isinstance(source, Blocks):
            kinds.add((source.X.dtype, sparse.issparse(source.X)))
    some = losses if isinstance(losses, Sequence) else [losses]
    built_in = next((loss for loss in some if not isinstance(loss, CustomLoss)), None)
    if built_in is None:
        return
    for dtype, csr in kinds:
        X = np.ones((2, _WIDTH), dtype=dtype)
        numbers = np.arange(1)
        blocks = Blocks(sparse.csr_matrix(X) if csr else X, np.ones(2), None, np.array([0, 2]), numbers, numbers, [""])
        worker = Worker(blocks, built_in)
        scalars: dict[str, Scalar] = {"seed": 0, "local_solver": "auto", "sampling": "shuffled", "max_passes": 1}
        scalars |= {"keep": False, "filled": 1.0}
        worker.answer(Message("prepare", scalars, {"total_weight": np.full(1, 2.0), "steps": np.zeros(1, np.int64)}))
        arrays = {"w": np.zeros((1, _WIDTH)), "step": np.ones(1)}
        worker.answer(Message("round", {"round": 0, "target": 0.0, "relax": 0.0}, arrays))
        arrays = {"directions": np.ones((_WIDTH, 1)), "centre": np.zeros((1, 1))}
        worker.answer(Message("catch_up", {"round": 1, "floor": 0.0}, arrays))
