"""The Ray engine: one actor per worker, on this machine or on a cluster.

The only file that imports Ray, and only when it is used. Ray never restarts an actor: a lost one is replaced by a new
one that is sent the log again (recovery.py), which takes a second instead of fifteen. A Ray cluster is one trust
domain: its wire format is pickle.
"""

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dmtrl.data.blocks import Blocks, Source
from dmtrl.engines.base import Engine
from dmtrl.engines.host import Host
from dmtrl.engines.options import Shards, Sources, check_options
from dmtrl.engines.recovery import Lost, RecoveringEngine, Refused
from dmtrl.losses import AnyLoss, CustomLoss
from dmtrl.numerics.checks import is_number, require
from dmtrl.protocol.message import Message


@dataclass(frozen=True)
class RayOptions:
    """How to use a Ray cluster; `engine="ray"` is RayOptions().

    Parameters
    ----------
    address : str, default=None
        Address of a running cluster; "auto" finds the one on this machine. None starts a cluster here, without
        dashboard or telemetry, and stops it afterwards. If Ray is already initialised in this process, that cluster is
        used.
    workers : int, default=None
        Number of actors. None means one per CPU, or fewer if there are fewer tasks.
    shards : int or sequence of int, default=1
        Number of pieces into which each task is cut first, so that a task can be spread over several actors: one
        number, or one per task.
    on_lost : {"stop", "go_on"}, default="stop"
        What to do when an actor cannot be replaced. "stop" raises WorkerLostError. "go_on" starts again on the
        remaining ones. Estimators keep all tasks, because they have the rows. `solve` leaves out the tasks of the lost
        actor and emits a TasksLeftOutWarning: the rows of W are then the remaining tasks (their numbers are `tasks` of
        the outcome), and checkpoints continue in the subfolder `again-1`; to resume from there, pass the remaining
        tasks as data and the number of workers that the warning names.
    max_staleness : int, default=0
        With 0 all actors run in step, and each round waits for the slowest. With a larger value answers are used as
        they arrive, and an actor may receive new weights this many times while another is still busy with older ones.
        The result is certified in both cases; with a positive value it is not bitwise reproducible.
    cpus : float, default=None
        CPUs that each actor reserves; may be a fraction. None divides the CPUs of the cluster, at most one each; an
        actor that replaces a lost one reserves none.
    resources : mapping of str to float, default={}
        Custom resources of each actor.
    strategy : str or object, default="SPREAD"
        Ray's scheduling strategy: "SPREAD", "DEFAULT" or one of Ray's objects.
    recovery_timeout : float, default=120.0
        Seconds within which a lost worker must be replaced; then the run ends.
    answer_timeout : float, default=None
        Seconds that one answer, or the reading of rows, may take before the worker counts as lost. None means no limit.
    namespace : str, default=None
        Ray namespace of the connection. None means an anonymous one.
    """

    address: str | None = None
    workers: int | None = None
    shards: Shards = 1
    on_lost: str = "stop"
    max_staleness: int = 0
    cpus: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    strategy: Any = "SPREAD"
    recovery_timeout: float = 120.0
    answer_timeout: float | None = None
    namespace: str | None = None

    def __post_init__(self) -> None:
        check_options(self)
        cpus, strategy = self.cpus, self.strategy
        resources: Any = self.resources
        recovery, answer, seconds = self.recovery_timeout, self.answer_timeout, "a positive number of seconds"
        require(self.on_lost in ("stop", "go_on"), "on_lost", "'stop' or 'go_on'", self.on_lost)
        require(cpus is None or _is_amount(cpus), "cpus", "None, or finite and not negative", cpus)
        amounts = isinstance(resources, Mapping) and all(map(_is_amount, resources.values()))
        require(amounts, "resources", "a mapping of names to amounts, such as {'gpu_node': 1}", resources)
        known = not isinstance(strategy, str) or strategy in ("SPREAD", "DEFAULT")
        require(known, "strategy", "'SPREAD', 'DEFAULT' or one of Ray's objects", strategy)
        require(_is_amount(recovery) and recovery > 0, "recovery_timeout", seconds, recovery)
        positive = answer is None or (_is_amount(answer) and answer > 0)
        require(positive, "answer_timeout", f"None or {seconds}", answer)

    def session(self) -> AbstractContextManager[object]:
        """Return a context in which engines that are started one after the other share a cluster."""
        return cluster(self)

    def start(
        self, sources: Sources, losses: AnyLoss | Sequence[AnyLoss], names: Sequence[str] | None = None
    ) -> Engine:
        """Start an engine.

        Parameters
        ----------
        sources : callable
            sources(workers, shards) returns the sources of so many workers.
        losses : Loss, CustomLoss or sequence of them
            One loss for all tasks, or one per task.
        names : sequence of str, default=None
            Task names for error messages.
        """
        with cluster(self) as processors:
            return RayEngine(sources(self.workers or processors, self.shards), losses, self, names)


def _is_amount(value: Any) -> bool:
    return is_number(value) and 0 <= value < float("inf")


class RayEngine(RecoveringEngine):
    """`sources`: one per worker, read where the worker runs. `losses`: one, or one per task."""

    def __init__(
        self,
        sources: Sequence[Source],
        losses: AnyLoss | Sequence[AnyLoss],
        options: RayOptions | None = None,
        names: Sequence[str] | None = None,
    ):
        options = options or RayOptions()
        if not sources:
            raise ValueError("the ray engine needs at least one source")
        _check_sendable(sources, losses)
        self._options, self._actors = options, _Actors(sources, losses, options)
        super().__init__(_Carrier(self._actors), options.recovery_timeout, names, options.answer_timeout)
        self.max_staleness = options.max_staleness

    @property
    def paths(self) -> int:
        """One more than there are actors, so that all are busy while this process works for one of the runs. With a
        limit on the time of an answer there is one: an answer would have to wait for those to other runs."""
        return 1 if self._options.answer_timeout is not None else self.n_workers + 1

    def sibling(self, number: int, threads: int = 1) -> RecoveringEngine | None:
        """An engine on the same actors, each of which has one more worker on the same rows."""
        if self.paths == 1:
            return None
        other = RecoveringEngine(_Carrier(self._actors, number), self._options.recovery_timeout, self._names)
        other.max_staleness = self.max_staleness
        return other


@contextmanager
def cluster(options: RayOptions) -> Iterator[int]:
    """A connection to Ray that the engines inside share; yields the number of CPUs."""
    _Connection.open(options)
    try:
        yield max(int(import_ray().cluster_resources().get("CPU", 1)), 1)
    finally:
        _Connection.close()


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError('the Ray engine needs Ray: pip install "dmtrl[ray]"') from error
    return ray


class _Connection:
    """Ray is initialised once per process: counts its users, and whether dmtrl initialised it."""

    users = 0
    ours = False

    @classmethod
    def open(cls, options: RayOptions) -> None:
        ray = import_ray()
        if not ray.is_initialized():
            common = {"namespace": options.namespace, "log_to_driver": False, "logging_level": logging.ERROR}
            with _environment(RAY_USAGE_STATS_ENABLED="0"):
                if options.address is None:
                    ray.init(address="local", include_dashboard=False, **common)
                else:
                    _check_reachable(options.address)
                    ray.init(address=options.address, **common)
            cls.ours = True
        cls.users += 1

    @classmethod
    def close(cls) -> None:
        cls.users -= 1
        if cls.users == 0 and cls.ours:
            cls.ours = False
            import_ray().shutdown()


def _check_reachable(address: str) -> None:
    """Raise ConnectionError for an address at which nothing listens; Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster at {address!r} ({error}); `ray start --head` starts one and prints its address"
        ) from error


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Actors:
    """The actors of an engine and of its siblings. The first that misses an actor replaces it for all."""

    def __init__(self, sources: Sequence[Source], losses: AnyLoss | Sequence[AnyLoss], options: RayOptions):
        _Connection.open(options)
        self.ray, self._options = import_ray(), options
        self._host = self.ray.remote(Host)
        self._sources, self._losses = sources, losses
        self._actors: list[Any] = [None] * len(sources)
        self._lock = threading.Lock()  # siblings run in threads
        self._closed = False

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, k: int) -> Any:
        return self._actors[k]

    def replace(self, k: int, missed: Any) -> Any:
        """Actor k, which is a new one if it was still the one that somebody missed."""
        with self._lock:
            if self._actors[k] is missed and not self._closed:
                cpus = self._options.cpus
                if cpus is None:  # a replacement must find room even if a node is gone or its CPUs are taken
                    cpus = self._share if missed is None else 0.0
                self._kill(k)
                how = {
                    "num_cpus": cpus,
                    "resources": dict(self._options.resources),
                    "scheduling_strategy": self._options.strategy,
                    "max_restarts": 0,
                    "max_task_retries": 0,
                }
                self._actors[k] = self._host.options(**how).remote(self._sources[k], self._losses)
            return self._actors[k]

    @cached_property
    def _share(self) -> float:
        processors = [node["Resources"].get("CPU", 0.0) for node in self.ray.nodes() if node["Alive"]]
        return cpu_share(processors, len(self))

    def _kill(self, k: int) -> None:
        if self._actors[k] is not None:
            self.ray.kill(self._actors[k])
            self._actors[k] = None

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self.ray.is_initialized():
                    for k in range(len(self)):
                        self._kill(k)
            finally:
                _Connection.close()


class _Carrier:
    """Carries the messages of one engine to the actors, where `sibling` numbers its workers (None: the first ones)."""

    advice = "give the cluster room for it (CPUs, memory, custom resources)"
    fault_advice = "if the loss is your own, run dmtrl.check_loss"

    def __init__(self, actors: _Actors, sibling: int | None = None):
        self._shared, self._sibling, self._ray = actors, sibling, actors.ray
        # a sibling begins with the actors that are there
        self._actors: list[Any] = [None if sibling is None else actors[k] for k in range(len(actors))]
        self._begun = [sibling is None] * len(actors)
        self._references: list[Any] = [None] * len(actors)  # Ray's reference to each worker's answer
        self._pending: dict[Any, int] = {}  # the worker of each reference
        self._ready: deque[Any] = deque()
        self._replaced: deque[int] = deque()  # workers whose actor another engine has replaced

    @property
    def n_workers(self) -> int:
        return len(self._actors)

    def renew(self, k: int) -> None:
        self._withdraw(k)
        if self._begun[k]:
            self._actors[k] = self._shared.replace(k, self._actors[k])
        self._begun[k] = True

    def post(self, k: int, number: int, messages: Sequence[Message]) -> None:
        self._withdraw(k)
        if self._actors[k] is not self._shared[k]:
            self._replaced.append(k)
            return
        self._references[k] = self._actors[k].answer.remote(self._sibling, number, messages)
        self._pending[self._references[k]] = k

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        if self._replaced:
            raise Lost(self._replaced.popleft(), "its actor was lost to another run")
        exceptions, reference = self._ray.exceptions, self._next(timeout)
        k = self._pending.pop(reference)
        try:
            return k, self._ray.get(reference)
        except exceptions.RayTaskError as error:  # raised by the worker
            raise Refused(k, _cause(error)) from None
        except exceptions.ActorUnavailableError as error:
            raise Lost(k, str(error), maybe_alive=True) from None
        except exceptions.RayError as error:
            raise Lost(k, str(error)) from None

    def _next(self, timeout: float | None) -> Any:
        """A reference whose answer has arrived."""
        while True:
            while self._ready:
                reference = self._ready.popleft()
                if reference in self._pending:
                    return reference
            pending = list(self._pending)
            if not pending:  # only timers can make progress
                time.sleep(timeout or 0.0)
                raise TimeoutError
            if not self._ray.wait(pending, num_returns=1, timeout=timeout)[0]:
                raise TimeoutError
            # asking Ray for one takes as long as asking for all
            self._ready.extend(self._ray.wait(pending, num_returns=len(pending), timeout=0)[0])

    def _withdraw(self, k: int) -> None:
        self._pending.pop(self._references[k], None)

    def close(self) -> None:
        if self._sibling is None:
            self._shared.close()
            return
        for actor in self._actors if self._ray.is_initialized() else ():
            if actor is not None:
                actor.dismiss.remote(self._sibling)


def cpu_share(processors: Sequence[float], actors: int) -> float:
    """The CPUs each of so many actors can reserve, at most one, so that all fit on the nodes."""
    sizes = {min(1.0, c / k) for c in processors if c > 0 for k in range(1, actors + 1)}
    sizes = {np.floor(1000 * size) / 1000 for size in sizes}  # Ray counts in ten-thousandths
    fitting = [size for size in sizes if size > 0 and sum(int(c / size + 1e-6) for c in processors) >= actors]
    return float(max(fitting, default=0.0))


def _cause(error: Any) -> Exception:
    cause = getattr(error, "cause", None)
    if isinstance(cause, ModuleNotFoundError):
        return ModuleNotFoundError(f"a machine of the Ray cluster lacks a package: {cause}; install it everywhere")
    return cause if isinstance(cause, Exception) else error


def _check_sendable(sources: Sequence[Source], losses: AnyLoss | Sequence[AnyLoss]) -> None:
    """Raise TypeError for what cannot be pickled, before anything is started."""
    cloudpickle = import_ray().cloudpickle
    every = losses if isinstance(losses, Sequence) else [losses]
    things: list[tuple[str, object]] = [
        *((f"the loss {loss.name!r}", loss) for loss in every if isinstance(loss, CustomLoss)),
        *((f"the source of worker {k}", source) for k, source in enumerate(sources) if not isinstance(source, Blocks)),
    ]
    for what, thing in things:
        try:
            cloudpickle.dumps(thing)
        except Exception as error:
            raise TypeError(
                f"{what} cannot be pickled: {error}; its functions may use numbers, arrays and modules only"
            ) from error
