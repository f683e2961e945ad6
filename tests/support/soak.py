"""A soak test (`make soak`): kills actors and whole nodes of a cluster at random and compares the bits of every run.

Not collected by pytest. Every run prints its seed, so that it can be repeated:
`python -m support.soak --minutes 1 --first 17`.
"""

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl import NotConvergedWarning, RoundRecord
from support import clusters
from support.ray_faults import Killer, mds_shaped, runs, same_bits, school, synthetic

DATA = Path(os.environ.get("DMTRL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
ROUNDS = 30


class NodeKiller:
    """A callback that removes a random node, with all that runs on it, after a random round."""

    def __init__(self, cluster: Any, nodes: list[Any], seed: int):
        """`nodes`: those that may be removed, in the order they were added; the cluster keeps them in a set."""
        rng = np.random.default_rng(seed)
        self._cluster, self._nodes = cluster, nodes
        self._when, self._which = int(rng.integers(1, ROUNDS - 1)), int(rng.integers(len(nodes)))
        self.killed = 0

    def __call__(self, record: RoundRecord) -> None:
        if record.round == self._when:
            self.killed = clusters.lose(self._cluster, self._nodes.pop(self._which))

    def join(self) -> None:
        self._nodes.append(add_node(self._cluster))


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=clusters.STORE)


def soak(minutes: float, first: int) -> None:
    problems = [synthetic, mds_shaped, *([school] if (DATA / "school.npz").exists() else [])]
    ready = [problem(DATA) for problem in problems]
    end, seed = time.monotonic() + 60 * minutes, first
    killed = lost = gone = 0
    with clusters.of_nodes(1) as cluster:
        nodes = [add_node(cluster), add_node(cluster)]
        while time.monotonic() < end or seed == first:
            began, k = time.monotonic(), seed % len(ready)
            whole_node = seed % 4 == 3
            disturb = NodeKiller(cluster, nodes, seed) if whole_node else Killer(10, ROUNDS, seed)
            plain, disturbed, losses = runs(ready[k], ROUNDS, disturb, cluster.address)
            disturb.join()
            same_bits(plain, disturbed)
            killed, lost, gone = killed + disturb.killed, lost + losses, gone + whole_node
            what = "a node" if whole_node else "actors"
            print(
                f"seed {seed}: {problems[k].__name__}, {what} killed ({disturb.killed} processes), {losses} workers "
                f"replaced, same bits, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            seed += 1
    print(
        f"{seed - first} runs of {ROUNDS} rounds in {minutes:g} minutes: {killed} processes killed, "
        f"{gone} nodes lost, {lost} workers replaced, every run with the bits of an undisturbed one, "
        "no process left"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill actors and nodes for a while and compare the bits.")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", NotConvergedWarning)
    soak(arguments.minutes, arguments.first)
