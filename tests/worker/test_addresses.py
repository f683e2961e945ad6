"""Where arrays lie in memory changes no bits: two runs, threads or engines never place them alike."""

import numpy as np
from numba import njit

from dmtrl.losses.scalar import EPSILON_INSENSITIVE
from dmtrl.numerics.compile_cache import KERNEL
from dmtrl.worker.box import SpanWork, box_unit
from dmtrl.worker.kernels import UnitRows

N = 50


@njit(**KERNEL | {"cache": False})  # numba's cache would not notice a change in box.py
def solved(labels, enough, K, r, alpha, work):  # type: ignore[no-untyped-def]
    return box_unit(labels, 0, enough, K, alpha.shape[0], r, 1.0, 1.0, alpha, work)


def test_a_box_problem_is_solved_with_the_same_bits_wherever_its_arrays_lie() -> None:
    rng = np.random.default_rng(0)
    X, one = rng.normal(size=(N, 20)), np.ones(1)
    y, weight = X @ rng.normal(size=20) + 0.3 * rng.normal(size=N), rng.uniform(1, 2, size=N)
    given = {"y": y, "p": weight / weight.sum(), "r": np.zeros(N), "alpha": np.zeros(N), "K": X @ X.T}
    given |= {"M": np.zeros((N, N)), "work": np.zeros((10, N))}
    found = set()
    for _ in range(400):
        memory, start, at = np.zeros(4 * N * N), 0, {}
        for name in rng.permutation(list(given)):
            start += rng.integers(N)
            end = start + given[name].size
            at[name] = memory[start:end].reshape(given[name].shape)
            at[name][...] = given[name]
            start = end
        work = SpanWork(at["M"], np.zeros(N, dtype=np.int64), *at["work"])
        losses, starts = np.array([EPSILON_INSENSITIVE]), np.array([0, N])
        labels = UnitRows(None, at["y"], at["p"], np.zeros(N), starts, losses, 0.1 * one, True, one, None)
        steps, _ = solved(labels, 1e-9, at["K"], at["r"], at["alpha"], work)
        assert steps > 1
        found.add(at["alpha"].tobytes())
    assert len(found) == 1
