"""From the table [privacy] of a study to its protection: the only place that asks which one it is."""

from dmtrl.federation.protection.base import Protection
from dmtrl.federation.protection.masks.protection import Masks
from dmtrl.federation.protection.noise.protection import Noise
from dmtrl.federation.protection.plain.protection import Plain
from dmtrl.federation.study.privacy_terms import MASKED, NONE
from dmtrl.federation.study.study_file import Study


def protection_of(study: Study) -> Protection:
    """The protection that a study declares."""
    if study.privacy.mode != NONE:
        return Noise(study)
    if study.privacy.aggregation == MASKED:
        return Masks(study)
    return Plain(study)
