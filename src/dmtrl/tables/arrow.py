"""pyarrow, imported on first use: it is optional, and a misspelled file name should not wait for its slow import."""

from importlib import import_module
from typing import Any


class _Module:
    """A module that is imported when one of its names is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(import_module(self._name), name)
        except ImportError as error:
            raise ImportError('reading data files needs pyarrow: pip install "dmtrl[frames]"') from error


pa, pc = _Module("pyarrow"), _Module("pyarrow.compute")
arrow_csv, parquet, dataset = _Module("pyarrow.csv"), _Module("pyarrow.parquet"), _Module("pyarrow.dataset")
