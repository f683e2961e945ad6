"""Noise in everything that leaves a site about its rows, with a stated differential privacy guarantee."""

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
from dmtrl.federation.protection.noise.accounting import cost_of
from dmtrl.federation.protection.noise.coordinator import NoiseCoordinator
from dmtrl.federation.protection.noise.declared import check_declared
from dmtrl.federation.protection.noise.releases import release_size
from dmtrl.federation.protection.noise.site import NoiseSite
from dmtrl.federation.study.approval_text import Leaving
from dmtrl.federation.study.privacy_terms import MOMENTS, NEWTON, ROUNDS
from dmtrl.protocol.study import Begin

_RELEASED = {
    MOMENTS: "second moments of its rows",
    NEWTON: "slope and curvature of its loss",
    ROUNDS: "a vector b",
}


class Noise(Protection):
    name = "noise"
    noisy = True
    tells_findings = False

    def guarantee(self, epsilon: float = math.inf) -> str:
        privacy = self.study.privacy
        return (
            f"Everything that leaves a site about its rows is ({min(epsilon, privacy.epsilon):g}, {privacy.delta:g})-"
            "differentially private for the replacement of one row of a task; the numbers of rows are not protected."
        )

    def what_leaves(self, allowance: Allowance) -> list[Leaving]:
        study, tasks, runs = self.study, allowance.tasks, allowance.runs
        content = f"per task: {_RELEASED[study.privacy.mode]}, with noise; and the point that was asked for"
        size = release_size(study.privacy, study.loss, study.declared_features)
        numbers = tasks * (size + study.declared_features + 2) + 1
        return [
            Leaving("welcome", "per task: its rows", 2 * tasks + 1, runs),
            begun_leaves(runs),
            Leaving("released", content, numbers, study.privacy.releases),
            no_errors_leave(tasks, runs),
        ]

    def approval_lines(self, epsilon: float, budget: PrivacyBudget) -> list[str]:
        privacy = self.study.privacy
        return [
            f"Privacy: {self.guarantee(epsilon)}",
            f"Mode {privacy.mode!r}: rows are shortened to the norm {privacy.row_norm:g}.",
            f"Privacy budget of this site, for all private studies together: {budget.describe()}.",
            budget.describe_after(self.study.hash, cost_of(privacy, epsilon)),
            "If a release cannot be computed, the site makes no further ones in the study; the coordinator learns",
            "that, and noise does not cover it.",
        ]

    def check_problem(self, begin: Begin) -> None:
        check_declared(self.study, begin)

    def coordinator(self, side: CoordinatorSide) -> NoiseCoordinator:
        return NoiseCoordinator(self.study, side)

    def site(self, side: SiteSide) -> NoiseSite:
        return NoiseSite(side)
