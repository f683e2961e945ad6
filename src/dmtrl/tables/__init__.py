"""Data files as batches of named columns, and columns as features.

`discovery` finds the files; `readers` and `arrays` read one file each; `table_files` joins several into one table;
`columns` and `cells` turn a column into numbers, texts or dates; `by_task` reads the rows of single tasks;
`preparation` turns columns into features, as `learning` decided; `output` writes tables.
"""

from dmtrl.tables.discovery import FORMATS, DataFile, find_files
from dmtrl.tables.names import nearest, require_column, require_columns
from dmtrl.tables.table_files import Batch, TableFiles, open_files

__all__ = [
    "FORMATS",
    "Batch",
    "DataFile",
    "TableFiles",
    "find_files",
    "nearest",
    "open_files",
    "require_column",
    "require_columns",
]
