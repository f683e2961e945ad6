"""Compiled code is made, or fetched from where it was kept, before anybody waits for it.

Room: engines.
"""

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from dmtrl.blocks import ArraySource, Blocks, Source
from dmtrl.coordinator import Coordinator
from dmtrl.engines.local import LocalEngine
from dmtrl.kernels import CHUNK
from dmtrl.losses import AnyLoss, CustomLoss
from dmtrl.message import Message
from dmtrl.relationship import get_relationship
from dmtrl.settings import Settings

_WIDTH = 4 * CHUNK  # features, from which on chunks are counted


def warm_up(sources: Sequence[Source], losses: AnyLoss | Sequence[AnyLoss]) -> None:
    """For rows and losses like these. Actors that compiled at the same moment would get in each other's way."""
    kinds = {(np.dtype(float), False)}
    for source in sources:
        if isinstance(source, ArraySource):
            kinds.add((source.blocks.X.dtype, sparse.issparse(source.blocks.X)))
    some = losses if isinstance(losses, Sequence) else [losses]
    built_in = next((loss for loss in some if not isinstance(loss, CustomLoss)), None)
    if built_in is None:
        return
    for dtype, csr in kinds:
        X = np.ones((2, _WIDTH), dtype=dtype)
        numbers = np.arange(1)
        blocks = Blocks(sparse.csr_matrix(X) if csr else X, np.ones(2), None, np.array([0, 2]), numbers, numbers, [""])
        with LocalEngine([ArraySource(blocks)], built_in) as engine:
            Coordinator(engine, 1, get_relationship("independent", 1, 0.0), 1.0, Settings(max_rounds=1)).run()
            arrays = {"directions": np.ones((_WIDTH, 1)), "centre": np.zeros((1, 1))}
            engine.broadcast(Message("catch_up", {"round": 1, "floor": 0.0}, arrays))
