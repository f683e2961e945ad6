"""Private versions of the small study of three clinics."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dmtrl import storage
from dmtrl.federation.study.study_file import Study, parse_study
from support.studies import CLINIC

PRIVACY = """[privacy]
mode = "{mode}"
epsilon = {epsilon}
row_norm = 2.5
{more}

[columns.age]"""


def private_text(mode: str = "auto", loss: str = "logistic", epsilon: float = 4.0, more: str = "") -> str:
    """The file of a private study; a regression loss predicts the cost."""
    text = CLINIC.replace("lambda = [0.3, 0.03]\ncommon = [0.0, 1.0]\nfolds = 3", "lambda = 0.03")
    text = text.replace('kind = "number"\n\n[columns.ward]', 'kind = "number"\nrange = [-4, 4]\n\n[columns.ward]')
    text = text.replace('loss = "logistic"', f'loss = "{loss}"')
    if loss in ("squared", "huber", "absolute", "quantile=0.8", "epsilon_insensitive"):
        target = text[text.index("[target]") : text.index("[fit]")]
        text = text.replace(target, '[target]\ncolumn = "cost"\nkind = "regression"\nrange = [-10, 30]\n\n')
    return text.replace("[columns.age]", PRIVACY.format(mode=mode, epsilon=epsilon, more=more), 1)


def private_study(mode: str = "auto", loss: str = "logistic", epsilon: float = 4.0, more: str = "") -> Study:
    return parse_study(private_text(mode, loss, epsilon, more).encode(), "clinic.toml")


def masked_text(tolerance: str = "tolerance = 1e-7", results: str = "", limits: str = "sites = 3") -> str:
    """The file of a study with masked sums."""
    text = CLINIC.replace(
        "lambda = [0.3, 0.03]\ncommon = [0.0, 1.0]\nfolds = 3", f"lambda = 0.03\ncommon = 1.0\n{tolerance}"
    )
    tables = f'[limits]\n{limits}\n[privacy]\naggregation = "masked"\n{results}\n'
    return text.replace("[columns.age]", tables + "[columns.age]", 1)


def numbers_of_single_sites(states: Sequence[Path]) -> np.ndarray:
    """The numbers of masked sums that only one of the sites has: its vectors, and the products of which its part of a
    sum is made. states: the file `masked/state.npz` of each site."""
    parts = []
    for path in states:
        _, arrays = storage.load(str(path), "dmtrl masked sums 1")
        vectors = [np.ravel(arrays[name]) for name in ("Z", "U", "V", "B", "best")]
        products = [np.outer(arrays[name][0], arrays[name][0]) for name in ("V", "B")]
        parts.append(np.unique(np.concatenate([*vectors, *map(np.ravel, products)])))
    values, counts = np.unique(np.concatenate(parts), return_counts=True)
    assert (counts == 1).mean() > 0.9
    return values[counts == 1]
