"""The named data sets: sizes and rho as the paper gives them, real files as their README describes them."""

import re
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse

from conftest import SharedData
from dmtrl import Outcome, Problem, TaskData, solve
from dmtrl.datasets import (
    SyntheticTasks,
    cache_folder,
    find_file,
    load_digits_tasks,
    load_mds,
    load_mnist_tasks,
    load_school,
    make_synthetic,
)

PAPER_RHO = {1: 6.24, 2: 12.95}


@pytest.fixture(scope="module")
def learned() -> dict[int, tuple[SyntheticTasks, Outcome]]:
    """Both synthetic problems at full size, learned as the constants of the generator were calibrated."""
    problems = {kind: make_synthetic(kind) for kind in (1, 2)}
    return {kind: (p, solve(Problem.of(p.train, loss="hinge", reg_lambda=1e-4))) for kind, p in problems.items()}


def test_synthetic_sizes_are_the_papers() -> None:
    problem = make_synthetic()
    assert problem.train.m == problem.test.m == 16
    assert problem.W.shape == (16, 100)
    assert len(problem.train.y) == 16 * 1894
    assert len(problem.test.y) == 16 * 811
    assert len(problem.train.y) + len(problem.test.y) == 43_280
    assert len(np.unique(np.diff(problem.train.starts))) > 8, "tasks are of unequal size"


def test_synthetic_tasks_copy_a_parent_or_its_opposite() -> None:
    correlation = make_synthetic().correlation
    for first, last in ((0, 5), (5, 10), (10, 16)):
        assert (np.abs(correlation[first, first:last]) > 0.9).all()
    assert (correlation < -0.9).any()
    parents = correlation[np.ix_([0, 5, 10], [0, 5, 10])]
    assert np.abs(parents - np.eye(3)).max() < 0.4, "the parents of kind 1 are drawn independently"


def test_synthetic_labels_follow_the_logistic_model() -> None:
    """Among rows whose model probability is about p, a share of about p has the label +1."""
    problem = make_synthetic(seed=3)
    data = problem.train
    task = np.repeat(np.arange(data.m), np.diff(data.starts))
    p = 1 / (1 + np.exp(-(data.X * problem.W[task]).sum(axis=1)))
    for low in np.arange(0, 1, 0.2):
        here = (p >= low) & (p < low + 0.2)
        spread = np.sqrt((p[here] * (1 - p[here])).sum())
        assert abs((data.y[here] > 0).sum() - p[here].sum()) < 4 * spread


def test_synthetic_is_reproducible_and_kind_2_has_the_same_inputs() -> None:
    size = {"rows_per_task": 50, "m": 7, "d": 6}
    one, again, other = make_synthetic(1, 4, **size), make_synthetic(1, 4, **size), make_synthetic(1, 5, **size)
    for a, b in (
        (one.train.X, again.train.X),
        (one.train.y, again.train.y),
        (one.test.y, again.test.y),
        (one.W, again.W),
    ):
        assert np.array_equal(a, b)
    assert not np.array_equal(one.W, other.W)
    second = make_synthetic(2, 4, **size)
    assert np.array_equal(one.train.X, second.train.X)
    assert np.array_equal(one.test.X, second.test.X)
    assert np.abs(second.correlation).mean() > np.abs(one.correlation).mean()
    assert len(one.train.y) + len(one.test.y) == 7 * 50


def test_learned_correlation_is_the_true_one(learned: dict[int, tuple[SyntheticTasks, Outcome]]) -> None:
    problem, outcome = learned[1]
    assert outcome.converged
    assert problem.recovery(outcome.covariance.correlation()) >= 0.98


@pytest.mark.parametrize("kind", [1, 2])
def test_rho_is_near_the_papers(kind: int, learned: dict[int, tuple[SyntheticTasks, Outcome]]) -> None:
    assert learned[kind][1].covariance.paper_rho() == pytest.approx(PAPER_RHO[kind], rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": 3}, "kind must be 1 or 2"),
        ({"rows_per_task": 3}, "rows_per_task at least 10"),
        ({"m": 0}, "m and d must be at least 1"),
    ],
)
def test_synthetic_refuses(arguments: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_synthetic(**arguments)


@pytest.mark.data
def test_school(shared_data: SharedData) -> None:
    school = load_school((shared_data / "school.npz").parent)
    assert school.X.shape == (15_362, 28)
    assert (school.X[:, -1] == 1).all()
    assert len(school.names) == len(np.unique(school.task)) == 139
    assert len(school.splits) == 10
    for train, test in school.splits:
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(15_362))
    train, _ = school.splits[0]
    assert TaskData.from_long(school.X[train], school.y[train], school.names[school.task[train]]).m == 139


@pytest.mark.data
def test_mnist(shared_data: SharedData) -> None:
    tasks = load_mnist_tasks((shared_data / "mnist.npz").parent, max_positives=100)
    for data, rows in ((tasks.train, 200), (tasks.test, 40)):
        assert data.X.dtype == np.float32
        assert data.X.shape == (10 * rows, 784)
        assert data.X.min() == 0
        assert data.X.max() == 1
        assert (np.diff(data.starts) == rows).all()
        assert all(data.y[a:b].sum() == 0 for a, b in zip(data.starts[:-1], data.starts[1:], strict=True))
    assert list(tasks.train.names) == [f"digit_{k}" for k in range(10)]
    few = load_mnist_tasks((shared_data / "mnist.npz").parent, digits=(7, 2), max_positives=100)
    assert list(few.train.names) == ["digit_7", "digit_2"]
    assert np.array_equal(few.train.X[:200], tasks.train.X[7 * 200 : 8 * 200])


@pytest.mark.data
def test_mnist_at_full_size_has_every_training_image_of_a_digit(shared_data: SharedData) -> None:
    tasks = load_mnist_tasks((shared_data / "mnist.npz").parent, digits=[0, 8])
    assert list(np.diff(tasks.train.starts)) == [2 * 5923, 2 * 5851], "counts of the official training set"


@pytest.mark.data
def test_mds(shared_data: SharedData) -> None:
    folder = (shared_data / "mds.npz").parent
    tasks = load_mds(folder)
    assert sparse.issparse(tasks.train.X)
    assert tasks.train.X.shape[1] == 10_000
    assert len(tasks.train.y) + len(tasks.test.y) == 17_756
    assert len(tasks.test.y) == pytest.approx(0.3 * 17_756, rel=0.02)
    assert np.array_equal(tasks.train.names, tasks.test.names)
    assert tasks.train.m == 22
    assert np.allclose(sparse.linalg.norm(tasks.train.X, axis=1), 1, atol=1e-5)
    natural, everything = (load_mds(folder, rows=rows, tfidf=False) for rows in ("natural", "all"))
    assert len(natural.train.y) + len(natural.test.y) == 31_205
    assert len(everything.train.y) + len(everything.test.y) == 34_510
    assert everything.train.X.max() > 1, "raw counts"
    with pytest.raises(ValueError, match="rows must be one of"):
        load_mds(folder, rows="some")
    with pytest.raises(ValueError, match="folds 0 to 9"):
        load_mds(folder, test_folds=(10,))


def test_digits_need_no_file_and_share_no_image() -> None:
    tasks = load_digits_tasks(seed=1)
    assert tasks.train.m == tasks.test.m == 10
    assert abs(tasks.train.y.sum()) == abs(tasks.test.y.sum()) == 0
    train = {row.tobytes() for row in tasks.train.X}
    assert not any(row.tobytes() in train for row in tasks.test.X)
    assert np.array_equal(load_digits_tasks(seed=1).train.X, tasks.train.X)
    with pytest.raises(ValueError, match="test_share"):
        load_digits_tasks(test_share=1.0)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True))
def test_a_digit_has_the_same_rows_in_any_set_of_digits(digits: list[int]) -> None:
    everything, some = load_digits_tasks(), load_digits_tasks(digits=digits)
    assert list(some.train.names) == [f"digit_{k}" for k in digits]
    for part, whole in ((some.train, everything.train), (some.test, everything.test)):
        for place, digit in enumerate(digits):
            a, b = part.starts[place : place + 2]
            c, d = whole.starts[digit : digit + 2]
            assert np.array_equal(part.X[a:b], whole.X[c:d])
            assert np.array_equal(part.y[a:b], whole.y[c:d])


@pytest.mark.parametrize("digits", [(3, 10), (-1,), (1.5,), (True,), ["3"], "38", 3, (), (4, 4)])
def test_invalid_digits_are_refused(digits: object) -> None:
    for load in (load_digits_tasks, load_mnist_tasks):
        with pytest.raises(ValueError, match=f"distinct integers from 0 to 9, .* got {re.escape(repr(digits))}"):
            load(digits=digits)


@pytest.fixture
def small_mds(tmp_path: Path) -> Path:
    """Four domains with 20, 60, 40 and 40 reviews of both labels; column k counts the domain's own number."""
    task = np.repeat(np.arange(4), [20, 60, 40, 40])
    counts = sparse.csr_matrix((np.arange(4)[task] + 1, task, np.arange(161)), shape=(160, 4))
    np.savez(
        tmp_path / "mds.npz",
        data=counts.data.astype(np.uint16),
        indices=counts.indices,
        indptr=counts.indptr,
        shape=np.array(counts.shape),
        y=np.tile([-1, 1], 80).astype(np.int8),
        task=task.astype(np.int32),
        task_names=np.array(["baby", "books", "dvd", "music"]),
        origin=np.zeros(160, dtype=np.int8),
        balanced=np.ones(160, dtype=bool),
        fold=(np.arange(160) // 2 % 10).astype(np.int8),
    )
    return tmp_path


@pytest.mark.parametrize(
    ("domains", "names"),
    [
        (None, ["baby", "books", "dvd", "music"]),
        (4, ["baby", "books", "dvd", "music"]),
        (1, ["books"]),
        (2, ["books", "dvd"]),
        (np.int64(3), ["books", "dvd", "music"]),
        ("dvd", ["dvd"]),
        (["music", "baby"], ["baby", "music"]),
        (np.array(["dvd"]), ["dvd"]),
    ],
)
def test_any_domains(small_mds: Path, domains: object, names: list[str]) -> None:
    tasks = load_mds(small_mds, domains=domains, tfidf=False)
    sizes = {"baby": 20, "books": 60, "dvd": 40, "music": 40}
    for part, share in ((tasks.train, 0.7), (tasks.test, 0.3)):
        assert list(part.names) == names
        assert list(np.diff(part.starts)) == [round(share * sizes[name]) for name in names]
        own = [sorted(sizes).index(name) + 1 for name in names]
        assert np.array_equal(part.X.sum(axis=1).A1, np.repeat(own, np.diff(part.starts))), "each domain's own rows"


@pytest.mark.parametrize(
    ("domains", "sentence"),
    [
        (0, "the number of domains must be from 1 to 4, got 0"),
        (5, "the number of domains must be from 1 to 4, got 5"),
        (True, "must be from 1 to 4"),
        (1.5, "names of domains or their number"),
        ("cars", "no domain 'cars'; the domains are baby, books, dvd, music"),
        (["dvd", 7], "no domain 7"),
        ([], "at least one name"),
        (["dvd", "dvd"], "none twice"),
    ],
)
def test_invalid_domains_are_refused(small_mds: Path, domains: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_mds(small_mds, domains=domains)


def test_files_are_found_by_environment_then_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, cache = tmp_path / "named", tmp_path / "cache"
    named.mkdir()
    cache.mkdir()
    monkeypatch.setenv("DMTRL_DATA", str(named))
    monkeypatch.setenv("DMTRL_CACHE", str(cache))
    assert cache_folder() == cache
    (cache / "school.npz").touch()
    assert find_file("school.npz") == cache / "school.npz"
    (named / "school.npz").touch()
    assert find_file("school.npz") == named / "school.npz"
    (tmp_path / "school.npz").touch()
    assert find_file("school.npz", tmp_path) == tmp_path / "school.npz"
    assert find_file("school.npz", tmp_path / "elsewhere") == named / "school.npz"
    monkeypatch.delenv("DMTRL_DATA")
    assert find_file("school.npz") == cache / "school.npz"


def test_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DMTRL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == Path("/somewhere/dmtrl")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "dmtrl"


def test_a_missing_file_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMTRL_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("DMTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DMTRL_OFFLINE", "1")
    with pytest.raises(FileNotFoundError) as caught:
        load_school()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert all(
        part in sentence for part in ("school.npz", str(tmp_path / "named"), str(tmp_path / "cache"), "DMTRL_DATA")
    )


@pytest.mark.data
def test_a_truncated_file_is_an_error(shared_data: SharedData, tmp_path: Path) -> None:
    whole = (shared_data / "school.npz").read_bytes()
    (tmp_path / "school.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="truncated"):
        load_school(tmp_path)
    damaged = bytearray(whole)
    damaged[len(whole) // 2 : len(whole) // 2 + 50] = bytes(50)
    (tmp_path / "school.npz").write_bytes(damaged)
    with pytest.raises(ValueError, match="not the expected data file"):
        load_school(tmp_path)
    np.savez(tmp_path / "school.npz", X=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="no array named y"):
        load_school(tmp_path)
