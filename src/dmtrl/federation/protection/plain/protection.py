"""No protection beyond what the messages leave out: sums and vectors b leave a site as they are."""

import math

from dmtrl.federation.protection.base import (
    Allowance,
    CoordinatorSide,
    PrivacyBudget,
    Protection,
    SiteSide,
    begun_leaves,
)
from dmtrl.federation.protection.plain.coordinator import PlainCoordinator
from dmtrl.federation.protection.plain.site import PlainSite
from dmtrl.federation.study.approval_text import Leaving
from dmtrl.federation.study.models import most_features, number_of_fits


class Plain(Protection):
    name = "plain"
    tells_classes = True
    tells_errors = True

    def guarantee(self, epsilon: float = math.inf) -> str:
        return "No noise is added: nothing that leaves a site is differentially private."

    def what_leaves(self, allowance: Allowance) -> list[Leaving]:
        study, tasks, runs, most = self.study, allowance.tasks, allowance.runs, allowance.rounds
        moments, levels = study.moments, study.counted_levels
        d, fits, folds = most_features(study), runs * number_of_fits(study), runs * (study.fit.folds + 2)
        return [
            Leaving("welcome", "per task: its rows, and whether all have one class", 2 * tasks + 1, runs),
            Leaving("cell_counts", "per column: present cells, their sum; rows per level", 2 * moments + levels, runs),
            Leaving("spread", "per column: the sum of squared distances from the mean", moments, runs),
            Leaving("feature_sums", "the sum of each prepared feature and of the target", d + 1, runs),
            Leaving("norms", "the sum of squared distances from the means, for features and target", 2, runs),
            begun_leaves(runs),
            Leaving("description", "per task: rows and sum of weights; a digest of the rows", 4 * tasks + 4, folds),
            Leaving("prepared", "per task: a vector b and sums of the loss", tasks * (d + 5), fits),
            Leaving("improved", "per task: a vector b and sums of the loss", tasks * (d + 7), most),
            Leaving("scores", "per task: sums of errors over rows held out for choosing lambda", 4 * tasks, fits),
            Leaving("saved", "the name of a checkpoint file that stays here", 0, most),
            Leaving("restored", "after a restart, per task: the last vector b again", tasks * (d + 1), most),
            Leaving("finished", "per task: sums of errors over its held-out rows", 4 * tasks, runs),
        ]

    def approval_lines(self, epsilon: float, budget: PrivacyBudget) -> list[str]:
        return [
            "Privacy: no noise is added. Sums and vectors b are not private by themselves: a malicious coordinator can",
            "compute single rows and their labels from them, and no check at this site excludes that.",
            "Approve only if you trust the operator of the server as if they saw the rows.",
        ]

    def coordinator(self, side: CoordinatorSide) -> PlainCoordinator:
        return PlainCoordinator(self.study, side)

    def site(self, side: SiteSide) -> PlainSite:
        return PlainSite(side)
