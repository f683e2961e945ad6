"""Ray clusters for tests, with one node or several on this machine. Nothing of them keeps running afterwards."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil
import pytest

from support.waiting import wait_for

STORE = 100 << 20  # bytes of shared memory per node


@contextlib.contextmanager
def alone(cpus: int = 2) -> Iterator[Any]:
    """A cluster of one node, initialised in this process."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    context = ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=cpus,
        object_store_memory=STORE,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield ray
    finally:
        ray.shutdown()
        assert all_ended(context.address_info["session_dir"])


@contextlib.contextmanager
def of_nodes(count: int, cpus: int = 1, resources: Mapping[str, float] | None = None) -> Iterator[Any]:
    """A cluster of several nodes, as processes on this machine, without a connection to it. The last node has the
    custom resources."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": cpus, "object_store_memory": STORE}
    # the loss of a node is detected after 2 seconds instead of 15; a slow node is not taken for lost
    checks = {"health_check_period_ms": 1000, "health_check_failure_threshold": 2, "health_check_timeout_ms": 20_000}
    head = {**node, "include_dashboard": False, "_system_config": checks}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for number in range(1, count):
            cluster.add_node(**node, resources=dict(resources or {}) if number == count - 1 else {})
        yield cluster
    finally:
        session = cluster.head_node.get_session_dir_path()
        cluster.shutdown()
        assert all_ended(session)


def actors() -> list[psutil.Process]:
    """The processes of dmtrl's actors below this process."""
    return [process for process in _descendants() if _title(process).startswith("ray::Host")]


def no_actors() -> bool:
    """Wait until no actor is left; a killed process takes a moment to end."""
    return wait_for(lambda: not actors(), "the end of all actors", every=0.1)


def actors_below(node: Any) -> list[psutil.Process]:
    """The actors on one node of a cluster."""
    raylet = node.all_processes["raylet"][0].process.pid
    below = {process.pid for process in psutil.Process(raylet).children(recursive=True)}
    return [process for process in actors() if process.pid in below]


def kill(process: psutil.Process) -> bool:
    """Kill a process; False if it had already ended."""
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def stop(process: psutil.Process) -> None:
    """Suspend a process: it stays alive and does nothing."""
    os.kill(process.pid, signal.SIGSTOP)


def lose(cluster: Any, node: Any) -> int:
    """Remove a node and kill the actors on it; returns their number."""
    there = actors_below(node)
    cluster.remove_node(node, allow_graceful=False)
    for process in there:
        kill(process)
    return len(there)


def all_ended(session: str | None = None, besides: Sequence[str] = ()) -> bool:
    """Wait until no process of Ray is left below this process, except `besides`; see `running`."""
    last: list[str] = []

    def ended() -> bool:
        last[:] = running(session, besides)
        return not last

    try:
        return wait_for(ended, "the end of Ray's processes", every=0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None


def running(session: str | None = None, besides: Sequence[str] = ()) -> list[str]:
    """Command lines of Ray processes below this process, without `besides`.

    With the folder of a Ray session, also its processes that are no longer below this one because their parent was
    killed.
    """
    left = [title for title in map(_title, _descendants()) if _is_ray(title)]
    left += [] if session is None else _with_files_in(session)
    return [title for title in left if title not in besides]


def _is_ray(title: str) -> bool:
    return any(word in title for word in ("ray::", "raylet", "gcs_server"))


def _with_files_in(folder: str) -> list[str]:
    """Processes that name the folder or have files open in it, as all processes of a session do. Their environment is
    of no use: some of them clear it."""
    others = [process for process in psutil.process_iter() if process.pid != os.getpid()]
    return [_title(process) for process in others if _title(process) and _uses(process, folder)]


def _uses(process: psutil.Process, folder: str) -> bool:
    try:
        return folder in _title(process) or any(file.path.startswith(folder) for file in process.open_files())
    except psutil.Error:
        return False


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _title(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.Error:
        return ""
