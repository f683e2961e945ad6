"""Compiles the kernels, or loads them from the cache, before a worker's time counts."""

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks, Source
from dmtrl.losses import AnyLoss, CustomLoss
from dmtrl.protocol.codec import encode
from dmtrl.protocol.rounds import Prepare, Round
from dmtrl.worker.rows import CHUNK
from dmtrl.worker.worker import Worker

_WIDTH = 4 * CHUNK  # features from which on chunks are counted


def warm_up(sources: Sequence[Source], losses: AnyLoss | Sequence[AnyLoss]) -> None:
    """For rows and losses like these."""
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
        first = np.arange(1)
        blocks = Blocks(sparse.csr_matrix(X) if csr else X, np.ones(2), None, np.array([0, 2]), first, first, [""])
        worker = Worker(blocks, built_in)
        prepare = Prepare(max_passes=1, total_weight=np.full(1, 2.0), steps=np.zeros(1, dtype=np.int64))
        worker.answer(encode(prepare))
        worker.answer(encode(Round(round=0, target=0.0, w=np.zeros((1, _WIDTH)), step=np.ones(1))))
