"""BLAS has one thread while any fit runs."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier, Event, current_thread, main_thread

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from dmtrl.numerics import blas
from dmtrl.numerics.blas import single_threaded_blas


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


def start() -> set[int]:
    """The number of threads at the start of a process, after BLAS has computed something."""
    _ = np.ones((64, 64)) @ np.ones((64, 64))
    found = blas_threads()
    assert found == {2}
    return found


def a_fit_in_another_thread_after_one_in_this() -> None:
    before = start()
    with ThreadPoolExecutor(1) as pool:
        with single_threaded_blas():
            assert blas_threads() == {1}
        assert blas_threads() == before

        def inside() -> set[int]:
            with single_threaded_blas():
                return blas_threads()

        assert pool.submit(inside).result() == {1}
        assert blas_threads() == before


def the_first_to_end_does_not_give_the_threads_back_to_the_others() -> None:
    both, ended = Barrier(2), Event()

    def second() -> set[int]:
        both.wait()  # begins after the other, and ends after it
        with single_threaded_blas():
            both.wait()
            ended.wait()
            return blas_threads()

    def first() -> None:
        with single_threaded_blas():
            both.wait()
            both.wait()
        ended.set()

    before = start()
    with ThreadPoolExecutor(2) as pool:
        earlier, later = pool.submit(first), pool.submit(second)
        assert later.result(timeout=30) == {1}
        earlier.result(timeout=30)
        assert blas_threads() == before
    assert blas_threads() == before


def a_limit_of_the_caller_comes_back() -> None:
    start()
    with threadpool_limits(2, user_api="blas"):
        of_caller = blas_threads()
        with single_threaded_blas():
            assert blas_threads() == {1}
        assert blas_threads() == of_caller


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.skipif(CORES < 2 or not blas_threads(), reason="BLAS has one thread, or a number that cannot be set")
@pytest.mark.parametrize(
    "scenario",
    [
        a_fit_in_another_thread_after_one_in_this,
        the_first_to_end_does_not_give_the_threads_back_to_the_others,
        a_limit_of_the_caller_comes_back,
    ],
)
@pytest.mark.subprocess
def test_in_a_new_process(scenario: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tests before have done to the number of threads of this process."""
    for library in ("OPENBLAS", "MKL", "OMP"):
        monkeypatch.setenv(f"{library}_NUM_THREADS", "2")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(scenario).result(timeout=60)


def test_an_error_gives_the_threads_back() -> None:
    before = blas_threads()
    with pytest.raises(ValueError, match="inside"), single_threaded_blas():
        raise ValueError("inside")
    assert blas_threads() == before


def test_an_interrupt_before_a_fit_gives_the_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Event):
        def wait(self, timeout: float | None = None) -> bool:
            if current_thread() is main_thread():
                super().wait(timeout)  # the limit holds
                raise KeyboardInterrupt
            return super().wait(timeout)

    before = blas_threads()
    monkeypatch.setattr(blas, "Event", Interrupted)
    with pytest.raises(KeyboardInterrupt), single_threaded_blas():
        pass
    assert blas_threads() == before
    monkeypatch.undo()
    with single_threaded_blas():
        assert blas_threads() <= {1}
    assert blas_threads() == before
