"""One thread for BLAS."""

from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def single_threaded_blas() -> Any:
    """A context in which BLAS uses one thread: small decompositions are faster so, and `numerics.rowwise` threads large
    products in pieces."""
    return _controller().limit(limits=1)
