"""Masks that cancel in a sum: the server reads sums over all sites, and nothing about a single one."""

import math

from dmtrl.federation.protection.base import (
    Allowance,
    CoordinatorSide,
    PrivacyBudget,
    Protection,
    SiteSide,
    begun_leaves,
    no_errors_leave,
)
from dmtrl.federation.protection.masks.coordinator import MasksCoordinator
from dmtrl.federation.protection.masks.site import MasksSite
from dmtrl.federation.study.approval_text import Leaving
from dmtrl.federation.study.models import most_features


class Masks(Protection):
    name = "masks"

    def guarantee(self, epsilon: float = math.inf) -> str:
        return "The server reads only sums over all sites; no noise is added, so these sums are not private."

    def what_leaves(self, allowance: Allowance) -> list[Leaving]:
        study, tasks, runs, most = self.study, allowance.tasks, allowance.runs, allowance.rounds
        d = most_features(study)
        content = "integers that are random by themselves; only sums over all sites can be read"
        numbers = 2 * (7 + d * (d + 1) + 2 * d + 2 * study.moments + study.counted_levels) + 1
        published = study.results.coordinator == "weights"
        weights = "per task: its final weights" if published else "nothing"
        return [
            Leaving("welcome", "per task: whether it takes part", 2 * tasks + 1, runs),
            Leaving("shared_key", "a public key", 32, most),
            Leaving("masked", content, numbers, 2 * most + 10 * runs),
            begun_leaves(runs),
            Leaving("published", weights, tasks * (d + 1), runs if published else 0),
            no_errors_leave(tasks, runs),
        ]

    def approval_lines(self, epsilon: float, budget: PrivacyBudget) -> list[str]:
        return [
            "Privacy: no noise is added, but the server reads only sums over all sites, of which there are at least "
            f"{self.study.limits.sites}.",
            "That holds if the server relays the keys of the sites unchanged. Sums are not private by themselves: the",
            "server and the other sites together can compute the numbers of this site. If a site is lost, the study",
            "ends; another run without it would show its numbers as the difference of the sums.",
        ]

    def coordinator(self, side: CoordinatorSide) -> MasksCoordinator:
        return MasksCoordinator(self.study, side)

    def site(self, side: SiteSide) -> MasksSite:
        return MasksSite(side)
