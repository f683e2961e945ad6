"""The reproduction of the paper: all experiments of `dmtrl-lab reproduce`."""

from dmtrl_lab.experiments.accuracy import ACCURACY
from dmtrl_lab.experiments.agreement import AGREEMENT
from dmtrl_lab.experiments.bounds import BOUNDS
from dmtrl_lab.experiments.collection import Collection
from dmtrl_lab.experiments.convergence import CONVERGENCE
from dmtrl_lab.experiments.coupling import COUPLING
from dmtrl_lab.experiments.errors import MDS, MNIST
from dmtrl_lab.experiments.grouped import GROUPED
from dmtrl_lab.experiments.heart import HEART
from dmtrl_lab.experiments.intervals import INTERVALS
from dmtrl_lab.experiments.relations import RELATIONS
from dmtrl_lab.experiments.school import SCHOOL
from dmtrl_lab.experiments.stall import STALL
from dmtrl_lab.experiments.unbalanced import UNBALANCED

REPRODUCTION = Collection(
    "The paper, reproduced",
    (
        "Every table and figure of Liu, Pan and Ho, “Distributed Multi-Task Relationship Learning” (KDD 2017), "
        "reproduced with dmtrl, with the paper's numbers next to ours. Beyond the paper: a certificate over weights "
        "and task covariance together, a solver that does not stall, and a federated study of four hospitals."
    ),
    {
        "synthetic": [RELATIONS, COUPLING, BOUNDS, UNBALANCED],
        "school": [SCHOOL],
        "mnist": [MNIST],
        "mds": [MDS],
        "heart": [HEART],
        "accuracy": [ACCURACY],
        "grouped": [GROUPED],
        "intervals": [INTERVALS],
        "convergence": [*CONVERGENCE, AGREEMENT, STALL],
    },
)
