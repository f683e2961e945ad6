"""The bounds hold: safety of every rho, and measured progress against predicted, with a reference SDCA in numpy."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dmtrl.losses import absolute, huber, quantile
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl_lab import theory
from dmtrl_lab.theory import TaskFacts

LOSSES = ["squared", "hinge", "smoothed_hinge"]  # written down anew, for labels -1 and +1: not the library's
seeds = st.integers(0, 10**6)


def value(loss, z, y):
    slack = 1 - y * z if loss == "squared" else np.maximum(1 - y * z, 0)
    return slack if loss == "hinge" else np.where((loss == "squared") | (slack < 1), slack**2 / 2, slack - 0.5)


@dataclass
class Problem:
    """U units of n rows (some weigh hardly anything). alpha is (..., U, n), so that many runs go side by side."""

    loss: str
    sigma: TaskCovariance
    lam: float
    tasks: np.ndarray  # (U,) the task of each unit
    X: np.ndarray  # (U, n, d)
    y: np.ndarray  # (U, n)
    p: np.ndarray  # (U, n), of sum one over the units of a task

    @classmethod
    def random(cls, rng, loss, sigma, lam, tasks, n=6, d=3):
        weight = rng.uniform(0.2, 1, (len(tasks), n)) * (rng.random((len(tasks), n)) < 0.9) + 1e-3
        whole = np.bincount(tasks, weights=weight.sum(axis=1))[tasks]
        y = np.where(rng.random(weight.shape) < 0.5, -1.0, 1.0)
        X = rng.normal(size=(*weight.shape, d)) / np.sqrt(d)
        return cls(loss, sigma, lam, tasks, X, y, weight / whole[:, None])

    def facts(self):
        return [TaskFacts.of(self.loss, *rows) for rows in zip(self.X, self.y, self.p, strict=True)]

    def step(self, rho):
        return rho * self.sigma.diagonal()[self.tasks] / self.lam

    def B(self, alpha):
        return np.einsum("un,...un,und->...ud", self.p, alpha, self.X)

    def W(self, alpha):
        return self.sigma.block(self.tasks) @ self.B(alpha) / self.lam

    def conjugates(self, alpha):
        return (self.p * ((self.loss != "hinge") * alpha**2 / 2 - alpha * self.y)).sum(axis=-1)

    def dual(self, alpha):
        return -(self.B(alpha) * self.W(alpha)).sum(axis=(-1, -2)) / 2 - self.conjugates(alpha).sum(axis=-1)

    def gaps(self, alpha, W):
        """The units' parts of the duality gap."""
        z = np.einsum("und,...ud->...un", self.X, W)
        return (self.p * (value(self.loss, z, self.y) + alpha * z)).sum(axis=-1) + self.conjugates(alpha)

    def local(self, alpha, new, step):
        """F_i of each unit at delta = new - alpha."""
        db = self.B(new) - self.B(alpha)
        return -self.conjugates(new) - (self.W(alpha) * db).sum(axis=-1) - step / 2 * (db**2).sum(axis=-1)

    def sdca(self, alpha, step, H, rng):
        """H (an array over runs and units) uniform coordinate steps of every run on every unit."""
        new, u, unit = alpha.copy(), self.W(alpha), np.arange(len(self.tasks))
        run, gamma = np.arange(len(alpha))[:, None], float(self.loss != "hinge")
        for k in range(np.max(H)):
            j = rng.integers(0, alpha.shape[-1], alpha.shape[:2])
            x, y, a, sp = self.X[unit, j], self.y[unit, j], new[run, unit, j], step * self.p[unit, j]
            t = a * y + (1 - y * (u * x).sum(axis=-1) - gamma * a * y) / (gamma + sp * (x**2).sum(axis=-1))
            t = t if self.loss == "squared" else np.clip(t, 0, 1)
            new[run, unit, j] = np.where(k < H, y * t, a)
            u += (sp * (new[run, unit, j] - a))[..., None] * x
        return new

    def safety(self, alpha, delta, rho, eta, owner):
        """D(alpha + eta delta) - [(1 - eta) D(alpha) + eta sum_k D_k(delta_k)], which a safe rho keeps >= 0."""
        dB, block = self.B(delta), self.sigma.block(self.tasks) * (owner[:, None] == owner)
        local = self.dual(alpha) + self.conjugates(alpha).sum() - self.conjugates(alpha + delta).sum()
        local -= (self.W(alpha) * dB).sum() + rho / (2 * self.lam) * (dB * (block @ dB)).sum()
        return self.dual(alpha + eta * delta) - (1 - eta) * self.dual(alpha) - eta * local


def some_sigma(rng, m, regular):
    """A random covariance; a singular one may have a task without any variance."""
    F = rng.normal(size=(m, m if regular else max(1, m // 2)))
    F[m - 1 if m > 2 and not regular else m :] = 0.0
    return TaskCovariance.from_dense(F @ F.T + (0.1 * np.eye(m) if regular else 0.0))


def some_units(rng, m):
    """The tasks of units: every task at least once, some split into shards, in any order."""
    return rng.permutation(np.concatenate([np.arange(m), rng.integers(0, m, rng.integers(0, 4))]))


def dense_rho(sigma, tasks, owner):
    """The largest generalised eigenvalue of (Sigma, its block diagonal), and its vector, by dense algebra."""
    S = sigma.block(tasks)
    values, vectors = np.linalg.eigh(S * (owner[:, None] == owner))
    root = (vectors / np.sqrt(np.maximum(values, 1e-300)))[:, values > 1e-10 * values[-1]]
    top, inside = np.linalg.eigh(root.T @ S @ root)
    return top[-1], root @ inside[:, -1]


@given(seeds, st.integers(1, 5), st.booleans(), st.floats(0.1, 1), st.sampled_from(LOSSES))
def test_every_rho_is_safe(seed, m, regular, eta, loss):
    rng = np.random.default_rng(seed)
    sigma = some_sigma(rng, m, regular)
    tasks = some_units(rng, m)
    problem, alone = Problem.random(rng, loss, sigma, 0.01, tasks), np.arange(len(tasks))
    alpha, new = problem.y * rng.random((2, *problem.y.shape))
    paper, spectral = eta * sigma.paper_rho(tasks), eta * sigma.spectral_rho(tasks)
    assert eta * (1 - 1e-9) <= spectral <= paper * (1 + 1e-9)
    rounding = 1e-10 * (1 + abs(problem.dual(alpha)) + abs(problem.dual(new)))
    for rho in (paper, spectral):
        assert problem.safety(alpha, new - alpha, rho, eta, alone) >= -rounding


@given(seeds, st.integers(1, 5), st.booleans())
def test_no_smaller_rho_is_safe(seed, m, regular):
    """The top eigenvector as dual step, on hinge, whose conjugate is linear: equality at rho, violation 1 % below."""
    rng = np.random.default_rng(seed)
    sigma, eta = some_sigma(rng, m, regular), 0.7
    tasks = some_units(rng, m)
    owner = np.arange(len(tasks))
    exact, v = dense_rho(sigma, tasks, owner)
    rho = eta * sigma.spectral_rho(tasks)
    assert rho == pytest.approx(eta * exact, rel=1e-7)
    one, p = np.ones((len(tasks), 1)), 1.0 / np.bincount(tasks)[tasks][:, None]
    problem = Problem("hinge", sigma, 0.1, tasks, one[:, :, None], one, p)
    delta = 0.4 * v[:, None] / p / np.abs(v[:, None] / p).max()
    curved = eta**2 / 2 * (problem.B(delta) * problem.W(delta)).sum()
    assert abs(problem.safety(one / 2, delta, rho, eta, owner)) <= 1e-6 * curved + 1e-13
    assert problem.safety(one / 2, delta, 0.99 * rho, eta, owner) < min(-0.009 * curved, 0) + 1e-13


@pytest.mark.parametrize("floor", [0.0, 1e-4, 1e-2, 1.0])
def test_rho_of_many_tasks_by_low_rank_algebra(floor):
    """Above a few hundred tasks rho comes from r x r algebra: exact without a floor, safe and close with one."""
    rng = np.random.default_rng(3)
    sigma = TaskCovariance(np.linalg.qr(rng.normal(size=(350, 4)))[0], rng.random(4) + 0.1, floor)
    whole, split = np.arange(350), np.concatenate([np.arange(350), np.arange(20)])
    for tasks in (whole, split):
        exact, _ = dense_rho(sigma, tasks, np.arange(len(tasks)))
        rho = sigma.spectral_rho(tasks)
        assert exact * (1 - 1e-9) <= rho <= exact + (np.bincount(tasks).max() if floor > 0 else 1e-6)
    assert sigma.spectral_rho() <= sigma.paper_rho()


@given(seeds, st.integers(2, 6), st.booleans())
def test_order_of_tasks_does_not_matter(seed, m, regular):
    rng = np.random.default_rng(seed)
    sigma, order = some_sigma(rng, m, regular), rng.permutation(m)
    turned = TaskCovariance.from_dense(sigma.block(order))
    tasks = some_units(rng, m)
    moved = np.argsort(order)[tasks]
    assert turned.paper_rho(moved) == pytest.approx(sigma.paper_rho(tasks), rel=1e-6)
    assert turned.spectral_rho(moved) == pytest.approx(sigma.spectral_rho(tasks), rel=1e-6)
    facts, step = [TaskFacts.even("squared", int(n)) for n in rng.integers(1, 100, m)], rng.random(m) * 50
    H, again = theory.steps_per_task(facts, 0.3, step), [facts[i] for i in order]
    np.testing.assert_array_equal(theory.steps_per_task(again, 0.3, step[order]), H[order])
    assert theory.rounds(again, step[order], gap=1e-3, start=1.0) == theory.rounds(facts, step, gap=1e-3, start=1.0)


def test_pi_is_the_smallest_constant():
    rng = np.random.default_rng(0)
    X, p, v = rng.normal(size=(7, 4)), rng.dirichlet(np.ones(7)), rng.normal(size=(500, 7))
    pi, top = theory.pi(X, p), np.linalg.svd(np.sqrt(p)[:, None] * X)[0][:, 0] / np.sqrt(p)
    assert ((((v * p) @ X) ** 2).sum(axis=1) <= pi * (v * v) @ p * (1 + 1e-12)).all()
    assert (((top * p) @ X) ** 2).sum() == pytest.approx(pi * (top * top) @ p)
    for rows in (X, sparse.csr_matrix(X)):
        assert theory.pi(rows, p) == pytest.approx(pi)
        assert theory.pi(0 * rows, p) == 0


@pytest.mark.parametrize("lam", [0.02, 0.5])
@pytest.mark.parametrize("loss", LOSSES)
def test_local_sdca_keeps_its_promise(loss, lam):
    """(26), (27): what H steps leave, on average over runs, against Theta(H); the optimum is certified by its gap."""
    rng = np.random.default_rng(1)
    problem = Problem.random(rng, loss, some_sigma(rng, 3, True), lam, np.array([0, 1, 1, 2]))
    step, start = problem.step(2.5), problem.y * rng.random(problem.y.shape)
    best = problem.sdca(start[None], step, np.full((1, 4), 6000), rng)[0]
    end = problem.W(start) + step[:, None] * (problem.B(best) - problem.B(start))
    assert problem.gaps(best, end).max() < 1e-7
    possible = problem.local(start, best, step) - problem.local(start, start, step)
    gaps, facts = problem.gaps(start, problem.W(start)), problem.facts()
    for H in (3, 10, 40, 150):
        new = problem.sdca(np.tile(start, (200, 1, 1)), step, np.full((200, 4), H), rng)
        left = (problem.local(start, best, step) - problem.local(start, new, step)).mean(axis=0)
        for i, task in enumerate(facts):
            for gap in [None] * task.smooth + [gaps[i]] * task.bounded:
                assert left[i] <= theory.local_theta(task, H, step[i], gap) * possible[i] + 1e-6
            assert not task.bounded or 0 < theory.local_progress(task, step[i], gaps[i]) <= possible[i] + 1e-6


@given(st.integers(1, 500), st.floats(0.01, 0.99), st.floats(0, 1e4), st.floats(1e-3, 10), st.sampled_from(LOSSES))
def test_local_steps_are_the_fewest_for_theta(n, theta, step, gap, loss):
    task = TaskFacts.even(loss, n)
    H = theory.local_steps(task, theta, step, gap)
    assert theory.local_theta(task, H, step, gap) <= theta * (1 + 1e-9)
    assert H == 0 or theory.local_theta(task, H - 1, step, gap) >= theta * (1 - 1e-9)
    # one hinge row from alpha = 0: F(delta) = delta - s delta^2 / 2 on [0, 1]
    assert theory.local_progress(TaskFacts.even("hinge", 1), 1 + step, 1.0) == pytest.approx(0.5 / (1 + step))
    # orthonormal rows, hardly any regularisation: a row visited is solved, so (1 - 1/n)^H of the error stays
    assert theory.local_theta(TaskFacts.of("squared", np.eye(20), np.ones(20)), n, 1e-9) == pytest.approx(0.95**n)


@pytest.mark.parametrize(("eta", "gap", "kind"), [(1, 0.2, "spectral"), (1, 0.5, "paper"), (0.6, 0.4, "spectral")])
@pytest.mark.parametrize("loss", LOSSES)
def test_measured_rounds_are_within_the_predicted(loss, eta, gap, kind):
    """Algorithm 1 and 2, with H from (26) or, from each round's gaps, (27), one task split: the gap after T rounds."""
    rng, theta = np.random.default_rng(2), 0.6
    sigma, tasks = some_sigma(rng, 3, True), np.array([0, 1, 2, 2])
    problem = Problem.random(rng, loss, sigma, 1.0, tasks)
    rho = sigma.paper_rho(tasks) if kind == "paper" else sigma.spectral_rho(tasks)
    facts, step = problem.facts(), problem.step(eta * rho)
    seen = [np.zeros((20, *problem.y.shape))]
    start = problem.gaps(seen[0], problem.W(seen[0]))[0].sum()
    bound = theory.rounds(facts, step, gap=gap, start=start, theta=theta, eta=eta)
    for _ in range(bound.total):
        gaps = np.maximum(problem.gaps(seen[-1], problem.W(seen[-1])), 0)
        H = np.array([theory.steps_per_task(facts, theta, step, row if loss == "hinge" else None) for row in gaps])
        new = problem.sdca(seen[-1], step, np.minimum(H, 400), rng)  # 400 steps solve problems as small as these
        seen.append(seen[-1] + eta * (new - seen[-1]))
    assert (bound.average_from is None) == (loss != "hinge")
    end = seen[-1] if bound.average_from is None else np.mean(seen[bound.average_from : -1], axis=0)
    assert problem.gaps(end, problem.W(end)).sum(axis=-1).mean() <= gap


def test_smooth_rounds_are_nearly_tight():
    """Two equal tasks with opposite labels, solved exactly: the error shrinks by 1 - kappa, the gap by its square."""
    sigma, needed = TaskCovariance.from_dense(np.ones((2, 2))), math.log(1e-8) / (2 * math.log(1 - 1 / 11))
    step = sigma.spectral_rho() * sigma.diagonal() / 0.3  # rho 2, sigma_ii 1/2: kappa = 1 / (1 + 3 / 0.3)
    facts = [TaskFacts.even("squared", 1, 3.0)] * 2
    assert 2 * needed <= theory.rounds(facts, step, gap=1e-8, start=1.0).total <= 2.3 * needed
    # one such task alone has, at alpha = 0, a gap of 1/2 while D* - D is 1/22: the factor 1/kappa
    assert [theory.rounds(facts[:1], step[:1], gap=gap, start=1 / 22).total for gap in (0.501, 0.499)] == [0, 1]


@given(st.floats(1e-6, 1e3), st.floats(1e-3, 10), st.floats(0, 0.9), st.floats(0.1, 1), st.floats(0, 100))
def test_lipschitz_rounds_follow_from_the_recursion(step, gap, theta, eta, start):
    """(29) from its recursion, D* - D <= (1 - a v) (D* - D) + a v^2 R / 2, run as it stands with the best v."""
    R, a = 2 * step, eta * (1 - theta)
    bound = theory.rounds([TaskFacts.even("hinge", 5)] * 2, [step, step], gap=gap, start=start, theta=theta, eta=eta)
    window, error = bound.total - bound.average_from, start
    for _ in range(min(bound.average_from, 20_000)):
        v = min(1.0, error / R)
        error = (1 - a * v) * error + a * v * v * R / 2
    assert bound.average_from > 20_000 or error <= gap / 2 * (1 + 1e-9)
    assert a * window >= max(1, R / gap) * (1 - 1e-9)


def test_refusals_and_widths():
    for wrong, words in (
        ({"n": 0}, "at least one row"),
        ({"pi": -1.0}, "pi must be"),
        ({"max_norm": math.nan}, "max_norm must be"),
        ({"norm_sum": math.inf}, "rows of a task must be finite"),
        ({"smoothness": math.inf, "width": math.inf}, "no bound is known"),
    ):
        with pytest.raises(ValueError, match=words):
            replace(TaskFacts.even("squared", 3), **wrong)
    even, facts = TaskFacts.even, [(huber(2.0), 4), (absolute(), 2), (quantile(0.3), 1), ("squared", math.inf)]
    assert [even(loss, 3).width for loss, _ in facts] == pytest.approx([width for _, width in facts])
    for call, words in (
        (lambda: even("poisson", 3), "neither bounded curvature"),
        (lambda: theory.local_steps(even("hinge", 3), 0.5, 1.0), "pass gap"),
        (lambda: theory.rounds([even("hinge", 3), even("squared", 3)], [1, 1], gap=1, start=1), "all smooth or all"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
