"""Rounds: the paper's algorithm, partitions, threads, shards, and what must not change the result."""

import itertools

import numpy as np
import pytest

from dmtrl import Execution, LocalOptions, Outcome, Problem, Settings, TaskData, solve
from dmtrl.losses import BUILTIN
from dmtrl.worker.worker import Worker
from support.problems import random_problem, rows_of
from support.solving import solve_data


def _bits(outcome: Outcome) -> bytes:
    return outcome.W.tobytes() + np.array([outcome.certificate.primal, outcome.certificate.dual]).tobytes()


@pytest.mark.parametrize("loss", ["hinge", "squared", "logistic", "huber"])
@pytest.mark.parametrize("eta", [1.0, 0.5])
def test_dual_rises_in_every_round_of_the_paper_preset(loss: str, eta: float) -> None:
    data = random_problem(loss, m=6, d=4, rows=30)
    outcome = solve(
        Problem.of(data, loss=loss, reg_lambda=0.01),
        Execution(LocalOptions(workers=6), settings=Settings.paper(T=8, P=4, H=25, eta=eta), verbose=0),
    )
    assert len(outcome.history) == 32
    assert sum(record.omega for record in outcome.history) == 4
    start = 0
    for end in [i + 1 for i, record in enumerate(outcome.history) if record.omega]:
        dual = [record.dual_now for record in outcome.history[start:end]]
        assert all(b >= a - 1e-12 * abs(a) for a, b in itertools.pairwise(dual))
        assert dual[-1] > dual[0]
        start = end


def test_a_w_step_that_ends_early_does_not_add_omega_steps() -> None:
    data = random_problem("squared", m=4, rows=20)
    settings = Settings.paper(T=200, P=3, w_tol=1e-2)
    outcome = solve(Problem.of(data, loss="squared", reg_lambda=0.1), Execution(settings=settings))
    ends = [record for record in outcome.history if record.omega]
    assert len(ends) == 3
    assert ends[-1] is outcome.history[-1]
    assert all(record.w_gap <= 1e-2 for record in ends)
    assert len(outcome.history) < 600


def test_paper_preset_takes_exactly_h_steps() -> None:
    data = random_problem("hinge", m=3, rows=20)
    outcome = solve(
        Problem.of(data, loss="hinge", reg_lambda=0.1),
        Execution(LocalOptions(workers=3), settings=Settings.paper(T=3, P=2, H=7)),
    )
    for record in outcome.history:
        assert record.passes == pytest.approx(3 * 7 / len(data.y))
        assert record.solver == "sdca"


def test_every_task_takes_its_own_h_steps() -> None:
    data = random_problem("hinge", m=3, rows=20)
    run = {"loss": "hinge", "reg_lambda": 0.1, "workers": 3}
    outcome = solve_data(data, settings=Settings.paper(T=3, P=2, H=(7, 20, 3)), **run)
    assert [record.passes for record in outcome.history] == pytest.approx([30 / len(data.y)] * 6)
    # a task with one coordinate step a round moves along one of its rows
    first = []
    solve_data(data, settings=Settings.paper(T=2, P=1, H=(1, 20, 20)), watch=lambda _, W: first.append(W), **run)
    rows = data.X[: data.starts[1]]
    cosine = np.abs(rows @ first[1][0]) / (np.linalg.norm(rows, axis=1) * np.linalg.norm(first[1][0]))
    assert cosine.max() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="2 for 3 tasks"):
        solve_data(data, settings=Settings.paper(H=(1, 2)), **run)


def test_watch_sees_the_weights_of_every_round() -> None:
    data = random_problem("squared", m=3, rows=20)
    seen = []
    run = {"loss": "squared", "reg_lambda": 0.1}
    outcome = solve_data(data, watch=lambda record, W: seen.append((record.round, record.objective, W)), **run)
    assert [number for number, _, _ in seen] == [record.round for record in outcome.history]
    _, objective, W = seen[-1]
    task = np.repeat(np.arange(3), np.diff(data.starts))
    share = 1.0 / np.diff(data.starts)[task]
    loss = (share * 0.5 * ((data.X * W[task]).sum(axis=1) - data.y) ** 2).sum()
    assert objective == pytest.approx(loss + 0.05 * np.linalg.norm(W, "nuc") ** 2)


def test_spectral_rho_needs_no_more_rounds_than_the_papers() -> None:
    data = random_problem("hinge", m=8, d=6, rows=60, seed=3)
    gaps = {}
    for rho in ("paper", "spectral"):
        settings = Settings.paper(T=10, P=6, H=120, rho=rho)
        gaps[rho] = solve(
            Problem.of(data, loss="hinge", reg_lambda=1e-2), Execution(LocalOptions(workers=8), settings=settings)
        ).history[-1]
    assert gaps["spectral"].rho <= gaps["paper"].rho
    assert gaps["spectral"].gap <= gaps["paper"].gap * 1.05


@pytest.mark.parametrize("method", ["splitting", "dual"])
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_same_bits_for_any_number_of_threads(loss: str, method: str) -> None:
    data = random_problem(loss, m=7, d=4, rows=25)
    settings = Settings(max_rounds=15, tol=0.0, method=method, seed=11)
    runs = {
        _bits(
            solve(
                Problem.of(data, loss=loss, reg_lambda=0.01),
                Execution(LocalOptions(workers=4, n_jobs=threads), settings=settings),
            )
        )
        for threads in (1, 2, 4)
    }
    assert len(runs) == 1


def test_splitting_gives_the_same_bits_for_any_partition() -> None:
    data = random_problem("hinge", m=7, d=4, rows=25, weighted=True)
    settings = Settings(max_rounds=15, tol=0.0, seed=11)
    runs = {
        _bits(
            solve(
                Problem.of(data, loss="hinge", reg_lambda=0.01), Execution(LocalOptions(workers=k), settings=settings)
            )
        )
        for k in (1, 2, 3, 7)
    }
    assert len(runs) == 1


def test_another_seed_gives_other_bits_and_the_same_answer() -> None:
    data = random_problem("hinge", m=4, d=4, rows=40)
    a, b = (
        solve(
            Problem.of(data, loss="hinge", reg_lambda=0.05),
            Execution(settings=Settings(tol=1e-6, seed=seed, max_rounds=3000)),
        )
        for seed in (0, 1)
    )
    assert _bits(a) != _bits(b)
    assert a.certificate.primal == pytest.approx(b.certificate.primal, rel=2e-6)


@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_permuting_tasks_permutes_the_answer(loss: str) -> None:
    data = random_problem(loss, m=5, d=4)
    order = np.array([3, 0, 4, 1, 2])
    permuted = TaskData.from_list([(data.X[rows_of(data, i)], data.y[rows_of(data, i)]) for i in order])
    settings = Settings(tol=1e-9, max_rounds=5000)
    a = solve(Problem.of(data, loss=loss, reg_lambda=0.1), Execution(settings=settings))
    b = solve(Problem.of(permuted, loss=loss, reg_lambda=0.1), Execution(settings=settings))
    assert np.allclose(a.W[order], b.W, atol=1e-3)
    assert np.allclose(a.covariance.dense()[np.ix_(order, order)], b.covariance.dense(), atol=1e-3)


@pytest.mark.parametrize("loss", BUILTIN)
def test_a_doubled_row_is_a_doubled_weight(loss: str) -> None:
    data = random_problem(loss, m=3, d=4)
    weight = np.random.default_rng(0).integers(1, 4, size=len(data.y))
    tasks = np.repeat(np.arange(3), np.diff(data.starts))
    repeated = TaskData.from_long(
        np.repeat(data.X, weight, axis=0), np.repeat(data.y, weight), np.repeat(tasks, weight)
    )
    weighted = TaskData.from_long(data.X, data.y, tasks, weight.astype(float))
    settings = Settings(tol=1e-7, max_rounds=5000)
    a = solve(Problem.of(repeated, loss=loss, reg_lambda=0.1), Execution(settings=settings))
    b = solve(Problem.of(weighted, loss=loss, reg_lambda=0.1), Execution(settings=settings))
    assert a.certificate.primal == pytest.approx(b.certificate.primal, rel=2e-7)


@pytest.mark.parametrize("method", ["splitting", "dual"])
def test_one_task_over_several_workers(method: str) -> None:
    data = random_problem("hinge", m=3, d=4, rows=40)
    settings = Settings(tol=1e-4, max_rounds=5000, method=method)
    kwargs = {"loss": "hinge", "reg_lambda": 0.05, "relationship": "shared", "settings": settings}
    whole = solve_data(data, **kwargs)
    split = solve_data(data, shards=[3, 1, 2], workers=6, **kwargs)
    assert split.certificate.primal == pytest.approx(whole.certificate.primal, rel=2e-4)


def test_a_shard_may_be_empty() -> None:
    X, y = np.eye(3), np.array([1.0, 2.0, 3.0])
    data = TaskData.from_long(X, y, [0, 1, 1])
    outcome = solve(
        Problem.of(data, loss="squared", reg_lambda=0.1),
        Execution(LocalOptions(shards=[2, 2], workers=4), settings=Settings(tol=1e-6)),
    )
    whole = solve(Problem.of(data, loss="squared", reg_lambda=0.1), Execution(settings=Settings(tol=1e-6)))
    assert outcome.certificate.primal == pytest.approx(whole.certificate.primal, rel=2e-6)


def test_local_solvers_agree() -> None:
    data = random_problem("logistic", m=3, d=4)
    results = {
        name: solve(
            Problem.of(data, loss="logistic", reg_lambda=0.01),
            Execution(settings=Settings(tol=1e-6, local_solver=name, max_rounds=3000)),
        )
        for name in ("sdca", "newton")
    }
    assert results["newton"].history[0].solver == "newton"
    assert results["newton"].certificate.primal == pytest.approx(results["sdca"].certificate.primal, rel=2e-6)


def test_weak_regularisation_picks_an_exact_local_solver() -> None:
    data = random_problem("squared", m=3, d=6, rows=30)
    outcome = solve(Problem.of(data, loss="squared", reg_lambda=1e-7))
    assert outcome.history[-1].solver == "gram"
    assert outcome.certificate.relative_gap <= 1e-3


@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "squared_hinge", "huber"])
@pytest.mark.parametrize("reg_lambda", [1e-4, 1e-7])
def test_weak_regularisation_does_not_deadlock(loss: str, reg_lambda: float) -> None:
    """A local answer that is good in objective but far away in u once left W at zero for ever."""
    data = random_problem(loss, m=6, d=8, rows=60)
    outcome = solve(Problem.of(data, loss=loss, reg_lambda=reg_lambda), Execution(settings=Settings(max_rounds=200)))
    assert outcome.certificate.relative_gap <= 1e-3


@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "squared_hinge", "huber", "squared"])
@pytest.mark.parametrize("d", [30, 100])
def test_more_features_than_rows_and_weak_regularisation(loss: str, d: int) -> None:
    data = random_problem(loss, m=5, d=d, rows=20)
    outcome = solve(Problem.of(data, loss=loss, reg_lambda=1e-6), Execution(settings=Settings(max_rounds=300)))
    assert outcome.certificate.relative_gap <= 1e-3


@pytest.mark.parametrize("loss", BUILTIN)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_features_of_any_scale(loss: str, scale: float) -> None:
    data = random_problem(loss, m=5, d=6, rows=25)
    big = TaskData(scale * data.X, data.y, None, data.starts, data.names)
    outcome = solve(Problem.of(big, loss=loss, reg_lambda=0.01), Execution(settings=Settings(max_rounds=1000)))
    assert outcome.certificate.relative_gap <= 1e-3


def test_bytes_are_d_numbers_a_task_and_a_little_more() -> None:
    data = random_problem("squared", m=4, d=500)
    two_rounds = Settings(max_rounds=2, tol=0.0)
    record = solve(
        Problem.of(data, loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=4), settings=two_rounds)
    ).history[-1]
    numbers = 4 * 500 * 8
    assert numbers < record.bytes_sent < numbers + 4 * 400
    assert numbers < record.bytes_received < numbers + 4 * 600


def test_nan_in_an_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Worker.answer

    def broken(self: Worker, message: object) -> object:
        reply = answer(self, message)  # type: ignore[arg-type]
        if reply.name == "improved":
            reply.arrays["b"][0, 0] = np.nan
        return reply

    monkeypatch.setattr(Worker, "answer", broken)
    with pytest.raises(FloatingPointError, match="round 0: worker 0 answered NaN or infinity for task 0"):
        solve(Problem.of(random_problem("squared"), loss="squared", reg_lambda=0.1))


def test_callbacks_see_every_round() -> None:
    seen: list[int] = []
    outcome = solve(
        Problem.of(random_problem("squared"), loss="squared", reg_lambda=0.1),
        Execution(callbacks=[lambda r: seen.append(r.round)]),
    )
    assert seen == list(range(len(outcome.history)))
