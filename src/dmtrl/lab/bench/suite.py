"""All benchmarks of `dmtrl bench`, as one collection."""

from dmtrl.lab.bench.cluster import CLUSTER
from dmtrl.lab.bench.kernels import KERNELS
from dmtrl.lab.bench.rounds import ROUNDS
from dmtrl.lab.bench.scale import SCALE
from dmtrl.lab.bench.solve import SOLVE
from dmtrl.lab.bench.startup import STARTUP
from dmtrl.lab.bench.stragglers import STRAGGLERS
from dmtrl.lab.experiments.collection import Collection

BENCHMARKS = Collection(
    "dmtrl benchmarks",
    "Time for one task, for a whole fit and for start-up; growth of time and memory; rounds and bytes; "
    "Ray clusters and slow workers. Each table names what dmtrl is compared with.",
    {
        "kernels": [KERNELS],
        "solve": [SOLVE],
        "rounds": [ROUNDS],
        "scale": [SCALE],
        "startup": [STARTUP],
        "stragglers": [STRAGGLERS],
        "cluster": [CLUSTER],
    },
)
