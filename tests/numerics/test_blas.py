"""One thread for BLAS while anybody computes."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event

import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from dmtrl.numerics.blas import single_threaded_blas


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@contextmanager
def two_threads() -> Iterator[set[int]]:
    """Leaves nobody in control of the number, as at the start of a process."""
    before = blas_threads()
    with threadpool_limits(2, user_api="blas"):
        pass
    if before == {1}:
        pytest.skip("BLAS has one thread only")
    yield before


def test_a_fit_in_another_thread_after_one_in_this() -> None:
    with two_threads() as before, ThreadPoolExecutor(1) as pool:
        with single_threaded_blas():
            assert blas_threads() == {1}
        assert blas_threads() == before

        def inside() -> set[int]:
            with single_threaded_blas():
                return blas_threads()

        assert pool.submit(inside).result() == {1}
        assert blas_threads() == before


def test_the_first_to_end_does_not_give_the_threads_back_to_the_others() -> None:
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

    with two_threads() as before, ThreadPoolExecutor(2) as pool:
        earlier, later = pool.submit(first), pool.submit(second)
        assert later.result(timeout=30) == {1}
        earlier.result(timeout=30)
        assert blas_threads() == before
    assert blas_threads() == before


def test_a_limit_of_the_caller_comes_back() -> None:
    with two_threads(), threadpool_limits(2, user_api="blas"):
        of_caller = blas_threads()
        with single_threaded_blas():
            assert blas_threads() == {1}
        assert blas_threads() == of_caller


def test_an_error_gives_the_threads_back() -> None:
    before = blas_threads()
    with pytest.raises(ValueError, match="inside"), single_threaded_blas():
        raise ValueError("inside")
    assert blas_threads() == before
