"""The conformance suite for authors of an engine: `check_engine` tests an engine against the contract in base.py.

Answers are compared with those of a `LocalEngine`, bit for bit. The suite takes a few seconds.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks, Source
from dmtrl.engines.base import Engine
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.protocol.codec import decode, encode, name_of
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, HoldOut, Prepare, Restore, Round, Save, Score

Start = Callable[[Sequence[Source], AnyLoss], Engine]
_TASKS = ((0, 1), (2,), (3, 4))  # of each worker
_SPLIT = ((0, 1), (0,), (0, 2))  # task 0 is split over all workers
_FEATURES = 5
_SECONDS = 120.0  # that an answer may take
_DESCRIBE = encode(Describe())


def check_engine(start: Start) -> None:
    """Raise AssertionError with a line for every violation of the contract of `Engine`.

    Parameters
    ----------
    start : callable
        `start(sources, loss)` returns a new engine with one worker per source, which the suite closes. The sources
        hold a few dense or CSR rows of float64 or float32.
    """
    layouts: dict[str, list[Source]] = {
        "dense rows": _sources(_TASKS),
        "CSR rows": _sources(_TASKS, csr=True),
        "float32 rows": _sources(_TASKS, dtype=np.float32),
        "a task split over workers": _sources(_SPLIT),
    }
    violations: list[str] = []
    loss = get_loss("logistic")
    for name, sources in layouts.items():
        checks = [_bits] if violations or name != "dense rows" else [_requests, _answers, _dropped, _errors, _bits]
        with single_threaded_blas(), LocalEngine(sources, loss) as local:
            engine = start(sources, loss)
            try:
                for check in checks:
                    violations += [f"{found} ({name})" for found in check(engine, local)]
            except Exception as error:  # the state of the engine is unknown from here on
                violations.append(f"{check.__name__.strip('_')}: unexpected {type(error).__name__}: {error} ({name})")
            violations += [f"{found} ({name})" for found in _close(engine)]
    if violations:
        raise AssertionError("\n- ".join(["the engine violates its contract:", *violations]))


def _sources(tasks: Sequence[Sequence[int]], csr: bool = False, dtype: type = np.float64) -> list[Source]:
    """Few rows with random labels -1 and 1."""
    rng = np.random.default_rng(0)
    sources: list[Source] = []
    for worker, own in enumerate(tasks):
        starts = np.cumsum([0, *rng.integers(8, 14, size=len(own))])
        X: Any = rng.normal(size=(starts[-1], _FEATURES)).astype(dtype)
        if csr:
            X = sparse.csr_matrix(X * (rng.random(X.shape) < 0.5))
        y = np.where(rng.random(starts[-1]) < 0.5, 1.0, -1.0)
        shards = np.array([worker if any(task in other for other in tasks[:worker]) else 0 for task in own])
        weight = rng.random(starts[-1]) + 0.5
        names = [f"task {task}" for task in own]
        sources.append(Blocks(X, y, weight, starts, np.array(own), shards, names))
    return sources


def _requests(engine: Engine, local: Engine) -> Iterator[str]:
    """One request at a time to each worker, and `pending`."""
    if engine.n_workers != local.n_workers:
        yield f"n_workers is {engine.n_workers} with {local.n_workers} sources"
    yield from _pending(engine, set(), "of a new engine")
    if not isinstance(_error_of(engine.receive), RuntimeError):
        yield "receive() does not raise RuntimeError when no answer is pending"
    engine.send(1, _DESCRIBE)
    yield from _pending(engine, {1}, "after send(1)")
    if not isinstance(_error_of(lambda: engine.send(1, _DESCRIBE)), RuntimeError):
        yield "a second send() to a worker whose answer is pending does not raise RuntimeError"
    yield from _pending(engine, {1}, "after a second send(1)")
    worker, _ = engine.receive(_SECONDS)
    if worker != 1:
        yield f"a request to worker 1 is answered by worker {worker}"
    yield from _pending(engine, set(), "after the answer is received")
    if not isinstance(_error_of(engine.receive), RuntimeError):
        yield "one request has more than one answer"


def _answers(engine: Engine, local: Engine) -> Iterator[str]:
    """In any order, but each from the worker it belongs to; a timeout changes nothing."""
    expected = local.broadcast(Describe())
    workers = [2, 0, 1]
    for worker in workers:
        engine.send(worker, _DESCRIBE)
    left = set(workers)
    yield from _pending(engine, left, "after a send() to every worker")
    timeout: float = 0.0
    while left:
        try:
            worker, message = engine.receive(timeout)
        except TimeoutError as error:
            if timeout:
                yield f"no answer within {timeout:g} seconds: {error}"
                return
            yield from _pending(engine, left, "after a TimeoutError")
            timeout = _SECONDS
            continue
        if worker not in left:
            yield f"worker {worker} answers without a request"
            return
        left.remove(worker)
        yield from _pending(engine, left, f"after the answer of worker {worker}")
        yield from _differences(worker, decode(message), expected[worker])


def _dropped(engine: Engine, local: Engine) -> Iterator[str]:
    """`exchange` drops answers that are pending from before."""
    for worker in (0, 2):
        engine.send(worker, _DESCRIBE)
    described = engine.broadcast(Describe(digest=True))
    yield from _pending(engine, set(), "after broadcast()")
    if sorted(described) != [0, 1, 2] or any(one.digest is None for one in described.values()):
        yield "broadcast() returns answers to requests from before"
    some = dict(engine.exchange({1: Describe()}))
    if list(some) != [1]:
        yield f"exchange() with worker 1 returns answers of workers {sorted(some)}"


def _errors(engine: Engine, local: Engine) -> Iterator[str]:
    """An error that a worker raises comes back with its type and message, and the engine remains usable."""
    with tempfile.TemporaryDirectory() as folder:
        missing = str(Path(folder) / "missing")
    first_round = Round(round=0, target=0.0, w=np.zeros((2, _FEATURES)), step=np.ones(2))
    for message in (Message("dance"), encode(first_round), encode(Restore(source=missing))):
        local.send(0, message)
        expected = _error_of(local.receive)
        engine.send(0, message)
        found = _error_of(lambda: engine.receive(_SECONDS))
        if not isinstance(found, type(expected)) or str(expected) not in str(found):
            yield f"a worker's {type(expected).__name__} ({expected}) comes back as {type(found).__name__} ({found})"
        yield from _pending(engine, set(), "after a worker raised an error")
        if sorted(engine.broadcast(Describe())) != [0, 1, 2]:
            yield "after a worker raised an error, not all workers answer"
    engine.send(0, Message("dance"))
    engine.send(1, _DESCRIBE)
    outcomes = [_error_of(lambda: engine.receive(_SECONDS)) for _ in range(2)]
    if sorted(type(one).__name__ for one in outcomes) != ["NoneType", "ValueError"]:
        yield f"an error of one worker and an answer of another come back as {outcomes}"
    yield from _pending(engine, set(), "after an error of one worker and an answer of another")


def _bits(engine: Engine, local: Engine) -> Iterator[str]:
    """The answers of a short run, with held-out rows and a checkpoint, have the bits of the local engine."""
    with tempfile.TemporaryDirectory() as folder:
        folders = {id(local): str(Path(folder) / "local"), id(engine): str(Path(folder) / "engine")}
        answers: Mapping[int, Any] = {}

        def exchange(request: Callable[[int, str], Any]) -> Iterator[str]:
            """Send request(worker, folder) to each worker of both engines and compare their answers."""
            nonlocal answers
            answers, found = (
                dict(one.exchange({k: request(k, folders[id(one)]) for k in (1, 2, 0)})) for one in (local, engine)
            )
            for worker, answer in answers.items():
                yield from _differences(worker, found.get(worker), answer)

        yield from exchange(lambda k, folder: Describe(digest=True))
        yield from exchange(lambda k, folder: HoldOut(fold=1, folds=3, seed=4))
        units = answers

        def prepare(k: int, keep: bool, w: np.ndarray | None = None) -> Prepare:
            total = np.zeros(len(units[k].tasks))
            for other in units.values():
                total += [other.weight[other.tasks == task].sum() for task in units[k].tasks]
            return Prepare(
                seed=3,
                max_passes=3,
                keep=keep,
                evaluate=w is not None,
                total_weight=total,
                steps=np.zeros(len(total), dtype=np.int64),
                w=w,
            )

        def one_round(number: int, b: Mapping[int, np.ndarray], probe: bool = False) -> Callable[[int, str], Round]:
            return lambda k, folder: Round(
                round=number,
                target=1e-9,
                evaluate_u=probe,
                w=0.3 * b[k],
                step=np.full(len(b[k]), 2.0),
                probe=0.1 * b[k] if probe else None,
            )

        yield from exchange(lambda k, folder: prepare(k, keep=False))
        for number in range(3):
            b = {k: answer.b for k, answer in answers.items()}
            yield from exchange(one_round(number, b, probe=number == 1))
        b = {k: answer.b for k, answer in answers.items()}
        yield from exchange(lambda k, folder: Score(w=b[k]))
        yield from exchange(lambda k, folder: Save(to=folder))
        yield from exchange(one_round(3, b))
        yield from exchange(lambda k, folder: Restore(source=folder))
        yield from exchange(one_round(3, b))
        yield from exchange(lambda k, folder: prepare(k, keep=True, w=b[k]))
        yield from exchange(lambda k, folder: HoldOut(fold=-1, folds=3, seed=4))


def _close(engine: Engine) -> Iterator[str]:
    for times in ("once", "twice"):
        error = _error_of(engine.close)
        if error is not None:
            yield f"close(), called {times}, raises {type(error).__name__}: {error}"


def _pending(engine: Engine, expected: set[int], when: str) -> Iterator[str]:
    if engine.pending != expected:
        yield f"pending is {engine.pending} {when} instead of {expected or '{}'}"


def _differences(worker: int, found: Any, expected: Any) -> Iterator[str]:
    """The first field in which two answers differ."""
    if type(found) is not type(expected):
        yield f"worker {worker} sent {type(found).__name__} instead of {type(expected).__name__}"
        return
    for item in fields(expected):
        a, b = getattr(found, item.name), getattr(expected, item.name)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        else:
            same = type(a) is type(b) and a == b
        if not same:
            yield f"{item.name!r} of message {name_of(type(expected))!r} of worker {worker} differs from LocalEngine"
            return


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
