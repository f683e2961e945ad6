"""Data files as batches of named columns, whatever their format and however many there are.

Room: beside intake. `discovery` finds the files and what their names say, `readers` and `arrays` open one file each,
`columns` turns a column into numbers, texts or dates. Nothing here knows what a column will be used for.
"""

from dmtrl.tables.discovery import FORMATS, Part, find_parts
from dmtrl.tables.source import Batch, Source, nearest, open_source

__all__ = ["FORMATS", "Batch", "Part", "Source", "find_parts", "nearest", "open_source"]
