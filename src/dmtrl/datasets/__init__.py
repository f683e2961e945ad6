"""Named data sets: the paper's synthetic tasks, and real ones that are read from files or downloaded.

`synthetic` generates tasks; `real` loads data sets from archives that `files` finds; `download` fetches a missing
archive from the URLs in `registry` and converts it with `convert`.
"""

from dmtrl.datasets.files import cache_folder, find_file
from dmtrl.datasets.real import (
    Activities,
    School,
    TaskSplit,
    load_digits_tasks,
    load_mds,
    load_mnist_tasks,
    load_school,
    load_wisdm,
)
from dmtrl.datasets.synthetic import SyntheticTasks, make_synthetic

__all__ = [
    "Activities",
    "School",
    "SyntheticTasks",
    "TaskSplit",
    "cache_folder",
    "find_file",
    "load_digits_tasks",
    "load_mds",
    "load_mnist_tasks",
    "load_school",
    "load_wisdm",
    "make_synthetic",
]
