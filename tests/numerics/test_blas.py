"""One thread for BLAS while anybody computes."""

from threading import Thread

import pytest
from threadpoolctl import ThreadpoolController

from dmtrl.numerics.blas import single_threaded_blas


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


def test_the_first_to_end_does_not_give_the_threads_back_to_the_others() -> None:
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = blas_threads()
        if before == {1}:
            pytest.skip("BLAS has one thread only")
        first, second = single_threaded_blas(), single_threaded_blas()
        first.__enter__()
        second.__enter__()
        ending = Thread(target=first.__exit__, args=(None, None, None))
        ending.start()
        ending.join()
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before


def test_an_error_gives_the_threads_back() -> None:
    before = blas_threads()
    with pytest.raises(ValueError, match="inside"), single_threaded_blas():
        raise ValueError("inside")
    assert blas_threads() == before
