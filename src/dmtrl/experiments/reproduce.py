"""The paper, reproduced: every table and figure, and what lies beyond.

Room: experiments, its top.
"""

from dmtrl.experiments.agreement import AGREEMENT
from dmtrl.experiments.bounds import BOUNDS
from dmtrl.experiments.collection import Collection
from dmtrl.experiments.convergence import CONVERGENCE
from dmtrl.experiments.coupling import COUPLING
from dmtrl.experiments.errors import MDS, MNIST
from dmtrl.experiments.relations import RELATIONS
from dmtrl.experiments.school import SCHOOL
from dmtrl.experiments.stall import STALL
from dmtrl.experiments.unbalanced import UNBALANCED

REPRODUCTION = Collection(
    "The paper, reproduced",
    (
        "Every table and figure of Liu, Pan and Ho, “Distributed Multi-Task Relationship Learning” (KDD 2017), "
        "measured anew with dmtrl, with the paper's own numbers beside ours; then what lies beyond the paper: a "
        "certificate over weights and task covariance together, and a solver that does not stall."
    ),
    {
        "synthetic": [RELATIONS, COUPLING, BOUNDS, UNBALANCED],
        "school": [SCHOOL],
        "mnist": [MNIST],
        "mds": [MDS],
        "convergence": [*CONVERGENCE, AGREEMENT, STALL],
    },
)
