"""The benchmarks as one collection.

Room: bench, its top.
"""

from dmtrl.bench.rounds import ROUNDS
from dmtrl.bench.solve import SOLVE
from dmtrl.experiments.collection import Collection

BENCHMARKS = Collection(
    "dmtrl, measured against others",
    "How long the whole job takes, and how often workers and server must talk, against the peers named in each table.",
    {"solve": [SOLVE], "rounds": [ROUNDS]},
)
