"""The paper's single-machine baselines, centralised MTRL and SSDCA.

They minimise the library's objective and return the records and the certificate of a distributed fit.
"""

from dmtrl_lab.baselines.alternating import Fitted
from dmtrl_lab.baselines.centralised import NotEnoughMemoryError, available_memory, centralised_mtrl
from dmtrl_lab.baselines.stochastic import ssdca

__all__ = [
    "Fitted",
    "NotEnoughMemoryError",
    "available_memory",
    "centralised_mtrl",
    "ssdca",
]
