"""All benchmarks of `dmtrl bench`, as one collection."""

from dmtrl.lab.bench.cluster import CLUSTER
from dmtrl.lab.bench.cv import CV
from dmtrl.lab.bench.federation import FEDERATION
from dmtrl.lab.bench.fit import FIT
from dmtrl.lab.bench.memory import MEMORY
from dmtrl.lab.bench.privacy import PRIVACY
from dmtrl.lab.bench.scale import SCALE
from dmtrl.lab.bench.startup import STARTUP
from dmtrl.lab.bench.stragglers import STRAGGLERS
from dmtrl.lab.bench.zoo import ZOO
from dmtrl.lab.experiments.collection import Collection

BENCHMARKS = Collection(
    "dmtrl benchmarks",
    "The default estimators first: fits and cross-validation against scikit-learn, random problems, start-up, memory. "
    "Then growth of time and memory, slow workers, Ray, studies between organisations, and what their privacy costs.",
    {
        "fit": [FIT],
        "cv": [CV],
        "zoo": [ZOO],
        "startup": [STARTUP],
        "memory": [MEMORY],
        "scale": [SCALE],
        "stragglers": [STRAGGLERS],
        "cluster": [CLUSTER],
        "federation": [FEDERATION],
        "privacy": [PRIVACY],
    },
)
