"""What runs in a Ray actor, without Ray."""

import numpy as np

from dmtrl.engines.host import Host
from dmtrl.losses import get_loss
from dmtrl.protocol.codec import encode
from dmtrl.protocol.rounds import Prepare, Round
from dmtrl.worker.worker import Worker
from support.problems import random_problem


def test_siblings_in_an_actor() -> None:
    """Each has dual variables of its own, and answers a repeated message from memory."""
    data, loss = random_problem("logistic", m=2, rows=12), get_loss("logistic")
    total = np.diff(data.starts).astype(float)
    prepare = encode(Prepare(local_solver="sdca", max_passes=1, total_weight=total, steps=np.zeros(2, np.int64)))
    w, step = np.ones((2, data.X.shape[1])), np.ones(2)
    rounds = [encode(Round(round=k, target=1e-9, w=w, step=step)) for k in range(2)]
    worker = Worker(data.sources(1)[0], loss)
    _, first, second = (worker.answer(message).arrays["b"].tobytes() for message in (prepare, *rounds))
    assert first != second
    host = Host(data.sources(1)[0], loss)
    for sibling in (None, 1):
        host.answer(sibling, 1, [prepare])
    assert host.answer(1, 2, [rounds[0]]).arrays["b"].tobytes() == first
    assert host.answer(1, 2, [rounds[0]]).arrays["b"].tobytes() == first, "the round was computed twice"
    assert host.answer(None, 2, rounds).arrays["b"].tobytes() == second
    assert host.answer(1, 3, [rounds[1]]).arrays["b"].tobytes() == second
    host.dismiss(1)
    assert host.answer(1, 3, []).name == "nothing", "a sibling that was dismissed begins anew"
