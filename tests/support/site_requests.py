"""A site with an approved study, the problem that a coordinator would send it, and refusals with their ledger line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.site.ledger import entries
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study import preparation as federated
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol import study as messages
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Prepare
from support.shell_data import write
from support.studies import approved_site, clinic, clinic_table

PREPARE = Prepare(
    seed=0,
    local_solver="auto",
    sampling="shuffled",
    max_passes=100,
    keep=False,
    density=1.0,
    intercept=True,
    intercept_ridge=np.full(1, 0.1),
    total_weight=np.array([60.0]),
    steps=np.zeros(1, dtype=np.int64),
)


def site_of(tmp_path: Path, study: Study | None = None, **policy: Any) -> Site:
    data = write(clinic_table(0), tmp_path / "north.csv")
    return approved_site(tmp_path / "site", study or clinic(), "north", data, Policy("", "", **policy))


def begin(site: Site) -> messages.Begin:
    """The problem of this site alone, as the coordinator would send it."""
    study, table, y = site.study, site.data.table.take(site.data.train), site.data.y[site.data.train]
    counts = [federated.cell_counts(study, table)]
    spreads = [federated.spread(study, table, federated.means_of(counts))]
    prepared = federated.prepare(study, len(y), counts, spreads)
    X = prepared.transform(table)
    sums = federated.feature_sums(X, y)
    x_centre, y_centre = federated.centres_of(study, len(y), [sums])
    parts = [federated.norms(X, y, x_centre, y_centre)]
    coordinates = federated.coordinates_of(len(y), x_centre, y_centre, parts)
    return messages.Begin(
        study=study.hash,
        preparation=federated.to_json(prepared),
        coordinates=federated.coordinates_to_json(coordinates),
        x_centre=x_centre,
        numbers=np.arange(1),
    )


def refusal(site: Site, message: Message) -> str:
    with pytest.raises(RefusedBySiteError) as caught:
        site.answer(message)
    last = list(entries(site.folder / "ledger.jsonl"))[-1]
    assert (last.name, last.text) == ("refused", caught.value.reason), "a refusal is in the ledger"
    return caught.value.reason
