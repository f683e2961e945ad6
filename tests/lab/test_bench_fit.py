"""`dmtrl-lab bench fit` and `cv`: peers are held to the optimum of their own objective, and get the same folds."""

import numpy as np
import pytest
from click.testing import CliRunner

from dmtrl.data.task_data import TaskData
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import get_loss
from dmtrl.protocol.rounds import HoldOut
from dmtrl_lab.bench import cv, fit, peers
from dmtrl_lab.bench.zoo import draw_rows
from dmtrl_lab.cli.main import main
from dmtrl_lab.experiments.experiment import Record
from dmtrl_lab.experiments.problems import tasks_of
from dmtrl_lab.experiments.records import Store


def small_tasks(loss: str) -> TaskData:
    X, y, task = draw_rows(np.random.default_rng(1), np.array([30, 40, 50]), 4, "plain", loss)
    return TaskData.from_long(X, y if loss == "poisson" else y / np.abs(y).max(), task)


@pytest.mark.parametrize("loss", peers.PEERS)
def test_a_peer_minimises_the_objective_that_it_is_held_to(loss: str) -> None:
    """At a tight tolerance the objective is at the certified bound, and every move away from it is worse."""
    data, rng = small_tasks(loss), np.random.default_rng(2)
    ridge = 0.05 * data.m
    for peer in peers.PEERS[loss]:
        models = peers.fit_tasks(peer, tasks_of(data), ridge, 1e-9)
        value = peers.peer_objective(peer, data, loss, ridge, models)
        lower = peers.lower_bound(data, loss, 0.05, peer.penalised, 1e-7)
        assert abs(value - lower) <= 1e-4 * abs(value)
        coef = np.array([np.ravel(model.coef_) for model in models])
        intercept = np.array([float(np.ravel(model.intercept_)[0]) for model in models])
        for _ in range(20):
            moved = coef + 0.05 * rng.standard_normal(coef.shape), intercept + 0.05 * rng.standard_normal(3)
            assert peers.objective(data, loss, ridge, *moved, peer.penalised) > value


def test_a_peer_gets_the_loosest_tolerance_that_is_accurate_enough() -> None:
    data = small_tasks("logistic")
    loose, tight = (peers.settle(data, "logistic", 1e-3, gap) for gap in (0.1, 1e-6))
    for one, other in zip(loose, tight, strict=True):
        assert one.peer == other.peer
        assert one.gap <= 0.1
        assert other.gap <= 1e-6
        assert one.tol >= other.tol


def test_the_fastest_peer_that_reached_the_gap_counts() -> None:
    figures = {
        "processor": {"a": [1.0, 1.0], "b": [2.0, 2.0], "c": [3.0, 3.0]},
        "peers": {"a": {"gap": 0.1}, "b": {"gap": 1e-4}, "c": {"gap": 1e-5}},
    }
    assert fit.fastest_peer(figures) == "b"
    assert fit.fastest_peer({**figures, "peers": {"a": {"gap": 0.1}, "b": {"gap": 0.2}}}) == "a"


def test_the_row_of_a_fit_by_hand() -> None:
    processor = {fit.DEFAULT: [2.0, 2.0], fit.THREADS: [3.0, 3.0], fit.SPECIAL: [0.5, 0.5], "Ridge": [4.0, 6.0]}
    seconds = {fit.DEFAULT: [2.0, 4.0], fit.THREADS: [1.0, 3.0]}
    figures = {"lambda": 0.01, "seconds": seconds, "processor": processor, "first": {fit.DEFAULT: 3.5}, "rounds": 500}
    figures |= {"gap": 0.2, "same_bits": False, "special_gap": 1e-4, "peers": {"Ridge": {"tol": 0.1, "gap": 1e-5}}}
    params = {"problem": "school", "loss": "squared", "reg_lambda": fit.CHOSEN}
    row = list(fit.table_row(Record("bench fit", params, {}, figures, 1.0)).values())
    assert row[:6] == ["School", "squared", "0.01 (CV)", "2", "500, gap 2.0e-01", "5"]
    assert row[6:] == ["< 2.5 (2 to 3)", "Ridge", "1.50 (1.33 to 2.00), DIFFERENT BITS", "0.5", "0.50"]


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_folds_are_those_of_the_workers(loss: str) -> None:
    """The weight of the rows that a worker keeps identifies them, because every row has another weight."""
    data = small_tasks(loss)
    weight = np.random.default_rng(3).uniform(1, 2, len(data.y))
    weighted = TaskData(data.X, data.y, weight, data.starts, data.names)
    with LocalEngine(weighted.sources(1), get_loss(loss), threads=1) as engine:
        for fold in range(cv.FOLDS):
            kept = engine.broadcast(HoldOut(fold=fold, folds=cv.FOLDS, seed=0))[0].weight
            for i, (a, b) in enumerate(zip(data.starts[:-1], data.starts[1:], strict=True)):
                train, held = cv.task_folds(data.y[a:b], i, stratified=loss == "logistic")[fold]
                assert sorted([*train, *held]) == list(range(b - a))
                assert kept[i] == pytest.approx(weight[a:b][train].sum(), rel=1e-12)


def test_random_tasks_have_the_sizes_that_they_say() -> None:
    data = peers.load_rows("36 x 75 x 300", "logistic", quick=False).train
    assert data.X.shape == (36 * 75, 300)
    assert set(np.diff(data.starts)) == {75}
    assert set(data.y) == {-1.0, 1.0}


def test_the_quick_fits_are_certified_and_so_are_the_peers(tmp_path) -> None:
    result = CliRunner().invoke(main, ["bench", "fit", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "| Synthetic 1 | hinge |" in result.stdout
    records = [record.figures for record in Store(tmp_path).read().values()]
    assert len(records) == len(fit.runs(quick=True))
    for figures in records:
        assert figures["gap"] <= fit.GAP
        assert figures["same_bits"]
        assert all(gap["gap"] > -1e-6 for gap in figures["peers"].values()), "nothing is below a proven bound"


@pytest.mark.data
@pytest.mark.slow
def test_the_quick_cross_validations(tmp_path, shared_data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMTRL_DATA", str((shared_data / "school.npz").parent))
    result = CliRunner().invoke(main, ["bench", "cv", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "| School | squared |" in result.stdout
    for record in Store(tmp_path).read().values():
        assert record.figures["gap"] <= 1e-3
        assert record.figures["same_choice"]
        assert max(record.figures["error"].values()) < (15 if record.params["loss"] == "squared" else 0.3)


def test_some_runs_only(tmp_path) -> None:
    """--only selects by a part of the parameters; the table has these runs and no others."""
    command = ["bench", "fit", "--quick", "--out", str(tmp_path), "--only"]
    result = CliRunner().invoke(main, [*command, "100 x 50 x 20, po"])
    assert result.exit_code == 0, result.output
    assert [record.params["loss"] for record in Store(tmp_path).read().values()] == ["poisson"]
    assert "| 100 x 50 x 20 | poisson |" in result.stdout
    assert "hinge" not in result.stdout
    for wrong in ([*command, "nothing like it"], ["bench", "zoo", "--only", "mds"]):
        assert CliRunner().invoke(main, wrong).exit_code == 2
