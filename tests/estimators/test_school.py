"""The School data: certified for every lambda, also where coordinate ascent alone would not move."""

from pathlib import Path

import numpy as np
import pytest

from dmtrl import Execution, MTRLRegressorCV, Problem, Settings, TaskData, solve


def _school(path: Path, standardise: bool) -> TaskData:
    with np.load(path) as file:
        train = file["train_1"]
        X, y, task = file["X"][train].astype(float), file["y"][train].astype(float), file["task"][train]
    if standardise:
        scale = X.std(axis=0)
        X = (X - np.where(scale > 0, X.mean(axis=0), 0.0)) / np.where(scale > 0, scale, 1.0)
        y = y - y.mean()
    return TaskData.from_long(X, y, task)


@pytest.mark.parametrize("reg_lambda", [1e-3, 1e-2, 1e-1, 1.0])
def test_default_preset_is_certified(shared_data, reg_lambda: float) -> None:
    data = _school(shared_data / "school.npz", standardise=True)
    outcome = solve(Problem.of(data, loss="squared", reg_lambda=reg_lambda))
    assert outcome.certificate.relative_gap <= 1e-3
    assert len(outcome.history) <= 20


def test_weak_regularisation_on_raw_features(shared_data) -> None:
    data = _school(shared_data / "school.npz", standardise=False)
    outcome = solve(Problem.of(data, loss="squared", reg_lambda=1e-6), Execution(settings=Settings(tol=1e-5)))
    assert outcome.history[-1].w_gap <= 1e-4
    assert outcome.certificate.relative_gap <= 1e-5


def test_the_papers_alternation_stalls_and_the_certificate_shows_it(shared_data) -> None:
    data = _school(shared_data / "school.npz", standardise=True)
    ours = solve(Problem.of(data, loss="squared", reg_lambda=0.1))
    paper = Settings.paper(T=5, P=30, local_solver="gram", rho="spectral")
    stalled = solve(Problem.of(data, loss="squared", reg_lambda=0.1), Execution(settings=paper))
    assert stalled.certificate.primal > ours.certificate.primal * 1.01
    assert stalled.certificate.relative_gap > 0.01


def test_a_common_component_helps_and_is_certified(shared_data) -> None:
    data = _school(shared_data / "school.npz", standardise=True)
    outcome = solve(Problem.of(data, loss="squared", reg_lambda=0.3, common=1.0))
    assert outcome.certificate.relative_gap <= 1e-3
    assert outcome.covariance.trace() == pytest.approx(1.0)
    assert np.abs(outcome.common).max() > 0.1


def test_choosing_on_training_rows_predicts_well(shared_data) -> None:
    """Split 1 with a small grid; all ten splits stand in docs/accuracy.md. Ridge with a column per school has 10.05."""
    with np.load(shared_data / "school.npz") as file:
        X, y, task = file["X"][:, :-1].astype(float), file["y"].astype(float), file["task"]
        train, test = file["train_1"], file["test_1"]
    X = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
    model = MTRLRegressorCV(lambdas=[0.2, 0.6, 1.8], commons=[0.0, 1.0], cv=3).fit(
        X[train], y[train], tasks=task[train]
    )
    error = np.sqrt(np.mean((y[test] - model.predict(X[test], tasks=task[test])) ** 2))
    assert error < 10.02
    assert model.common_strength_ == 1.0


def test_prediction_intervals_hold_nine_of_ten_test_rows(shared_data) -> None:
    with np.load(shared_data / "school.npz") as file:
        train, test = file["train_1"], file["test_1"]
        X, y, task = file["X"][:, :-1].astype(float), file["y"].astype(float), file["task"]
    X = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
    model = MTRLRegressorCV(lambdas=[0.3, 1.0], commons=[1.0], owns=[0.0]).fit(X[train], y[train], tasks=task[train])
    ends = model.predict_interval(X[test], task[test])
    assert np.isfinite(ends).all()
    inside = (ends[:, 0] <= y[test]) & (y[test] <= ends[:, 1])
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
