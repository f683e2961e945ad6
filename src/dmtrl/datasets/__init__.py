"""Named data sets: the paper's synthetic tasks, made on the spot, and real ones, read from files.

Room: beside solve and data. `synthetic` draws; `files` finds and reads archives, `real` says what is in them;
`download` brings one that is missing, from a home in `sources`, by way of `convert`.
"""

from dmtrl.datasets.files import cache_folder, find_file
from dmtrl.datasets.real import School, TaskSplit, load_digits_tasks, load_mds, load_mnist_tasks, load_school
from dmtrl.datasets.synthetic import SyntheticTasks, make_synthetic

__all__ = [
    "School",
    "SyntheticTasks",
    "TaskSplit",
    "cache_folder",
    "find_file",
    "load_digits_tasks",
    "load_mds",
    "load_mnist_tasks",
    "load_school",
    "make_synthetic",
]
