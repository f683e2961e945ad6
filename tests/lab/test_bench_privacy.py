"""`dmtrl-lab bench privacy` in its quick version, and its rivals where the answer is known."""

import numpy as np

from dmtrl.report.content import Table, Text
from dmtrl_lab.bench import privacy
from dmtrl_lab.experiments.experiment import Record


def test_the_quick_version_measures_and_shows_all_methods() -> None:
    run = privacy.runs(quick=True)[0]
    figures = privacy.measure(**run.params)
    for method in (privacy.A, privacy.B, privacy.C, privacy.FEDAVG):
        assert all(0.0 <= error <= 1.0 for error in figures[method].values())
    items = privacy.items([Record("bench privacy", dict(run.params), {}, dict(figures), 1.0)])
    table = next(item for item in items if isinstance(item, Table))
    assert len(table.rows) == 6
    assert table.columns[2:] == ["epsilon 1", "epsilon 8"]


def test_sites_that_are_too_small_are_named() -> None:
    errors = {method: {"1": 0.4, "8": 0.1} for method in (privacy.A, privacy.B, privacy.C, privacy.FEDAVG)}
    figures = {**errors, privacy.ALONE: 0.2, privacy.CLEAR: 0.1, "rows": 80, "sites": 4}
    items = privacy.items([Record("bench privacy", {"data": "heart"}, {}, figures, 1.0)])
    words = " ".join(item.text for item in items if isinstance(item, Text))
    assert "with epsilon 1 the best private mode is worse than each site alone: the sites are too small" in words


def test_without_noise_the_averages_find_the_shared_model() -> None:
    """A rival must be a fair one: with epsilon so large that there is no noise it finds a good model."""
    sites = privacy.simulated(500)
    W = privacy.noisy_average(sites, 1e4, 0)
    assert np.ptp(W, axis=0).max() == 0, "one model for all"
    assert sites.error(W) < 0.25
    assert sites.error(privacy.clear(sites)) < sites.error(W)
