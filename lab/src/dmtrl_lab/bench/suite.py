"""All benchmarks of `dmtrl-lab bench`, as one collection."""

from dataclasses import replace

from dmtrl_lab.bench.cluster import CLUSTER
from dmtrl_lab.bench.cv import CV
from dmtrl_lab.bench.federation import FEDERATION
from dmtrl_lab.bench.fit import FIT
from dmtrl_lab.bench.grouped import GROUPED, runs_with_large
from dmtrl_lab.bench.memory import MEMORY
from dmtrl_lab.bench.privacy import PRIVACY
from dmtrl_lab.bench.scale import SCALE
from dmtrl_lab.bench.startup import STARTUP
from dmtrl_lab.bench.stragglers import STRAGGLERS
from dmtrl_lab.bench.zoo import ZOO
from dmtrl_lab.experiments.collection import Collection

BENCHMARKS = Collection(
    "dmtrl-lab benchmarks",
    "The default estimators first: fits and cross-validation against scikit-learn, many groups against mixed "
    "models, random problems, start-up, memory. "
    "Then growth of time and memory, slow workers, Ray, studies between organisations, and what their privacy costs.",
    {
        "fit": [FIT],
        "cv": [CV],
        "grouped": [GROUPED],
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

# with the largest problems, which take half an hour
FULL_BENCHMARKS = replace(BENCHMARKS, groups={**BENCHMARKS.groups, "grouped": [replace(GROUPED, runs=runs_with_large)]})
