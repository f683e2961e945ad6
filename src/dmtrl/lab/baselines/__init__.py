"""What the library is measured against: the paper's four baselines, each a solver of its own.

Room: beside the estimators. `single_task` and `pooled` learn no relation between tasks; `centralised_mtrl` and
`ssdca` minimise the library's own objective on one machine. All return a `Fitted` with the records and the
certificate of a distributed fit, so that every method is measured by the same numbers.
"""

from dmtrl.lab.baselines.alternating import Fitted
from dmtrl.lab.baselines.centralised import NotEnoughMemoryError, available_memory, centralised_mtrl
from dmtrl.lab.baselines.simple import pooled, single_task
from dmtrl.lab.baselines.stochastic import ssdca

__all__ = [
    "Fitted",
    "NotEnoughMemoryError",
    "available_memory",
    "centralised_mtrl",
    "pooled",
    "single_task",
    "ssdca",
]
