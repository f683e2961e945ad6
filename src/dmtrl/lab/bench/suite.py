"""The benchmarks as one collection.

Room: bench, its top. A new benchmark is a file of its own beside this one, and a line here.
"""

from dmtrl.lab.bench.cluster import CLUSTER
from dmtrl.lab.bench.kernels import KERNELS
from dmtrl.lab.bench.network import NETWORK
from dmtrl.lab.bench.rounds import ROUNDS
from dmtrl.lab.bench.scale import SCALE
from dmtrl.lab.bench.solve import SOLVE
from dmtrl.lab.bench.startup import STARTUP
from dmtrl.lab.bench.stragglers import STRAGGLERS
from dmtrl.lab.experiments.collection import Collection

BENCHMARKS = Collection(
    "dmtrl, measured against others",
    "How long one task, the whole job and the start take, how time and memory grow, how often workers and server must "
    "talk, and what that comes to over a network, on a cluster or with a slow worker, against the peers named in each "
    "table.",
    {
        "kernels": [KERNELS],
        "solve": [SOLVE],
        "rounds": [ROUNDS],
        "scale": [SCALE],
        "startup": [STARTUP],
        "network": [NETWORK],
        "stragglers": [STRAGGLERS],
        "cluster": [CLUSTER],
    },
)
