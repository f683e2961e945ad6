"""Models of several classes in everything that a model can do: files, verification, comparison, export, intercepts."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dmtrl import LocalOptions, MTRLClassifier, MTRLClassifierCV, load, verify
from dmtrl.estimators.classes import fill_absent
from dmtrl.estimators.export import formulas

M, N, D = 4, 40, 4
RNG = np.random.default_rng(0)
X, TASKS, TRUTH = RNG.normal(size=(M * N, D)), np.repeat([*"abcd"], N), 2 * RNG.normal(size=(3, D))
Y = np.array(["x", "y", "z"])[(X @ TRUTH.T + RNG.gumbel(size=(M * N, 3))).argmax(axis=1)]
SEEN = ~((TASKS == "b") & (Y == "z"))  # the task b has no row of class z
ROWS = X[SEEN], Y[SEEN], TASKS[SEEN]
both = pytest.mark.parametrize("multi_class", ["softmax", "ovr"])


@both
def test_a_saved_model_predicts_the_same_and_can_be_verified(multi_class, tmp_path):
    model = MTRLClassifierCV(multi_class=multi_class, cv=3, commons=[1.0], lambdas=[0.1, 0.01]).fit(*ROWS)
    model.save(tmp_path / "model.dmtrl")
    loaded = load(tmp_path / "model.dmtrl")
    np.testing.assert_array_equal(loaded.predict_proba(X, tasks=TASKS), model.predict_proba(X, tasks=TASKS))
    certificate = verify(loaded, *ROWS)
    assert certificate.primal == pytest.approx(model.certificate_.primal, rel=1e-6)
    assert 0 <= certificate.relative_gap <= 1e-3
    assert model.metrics_.overall["error_rate"] < 0.3 < model.metrics_.baseline["error_rate"]
    loaded.coef_[1, 2] += 1.0  # weights without rows of their own count in the objective, too
    with pytest.raises(ValueError, match="the stored certificate is wrong"):
        verify(loaded, *ROWS)


@both
def test_comparison_and_warm_start(multi_class):
    model = MTRLClassifier(multi_class=multi_class, warm_start=True, reg_lambda=0.01).fit(*ROWS)
    first = model.n_rounds_
    assert model.fit(*ROWS).n_rounds_ < first
    comparison = model.compare(*ROWS, cv=3)
    assert comparison.measure == "wrong"
    assert str(comparison).startswith("mean held-out error rate over tasks: together ")
    assert comparison.tasks.tolist() == [*"abcd"]
    assert (comparison.together < 0.4).all()
    assert [name for name, _ in model.related("a").related] != []


@both
@pytest.mark.parametrize(
    "options",
    [
        {"relationship": np.eye(M), "common": 1.0},
        {"fit_intercept": "penalised"},
        {"fit_intercept": False},
        {"own": 1.0},
        {"engine": LocalOptions(workers=2, shards=2)},
        {"relationship": "independent"},
    ],
    ids=lambda options: ",".join(options),
)
def test_every_kind_of_model_is_certified(multi_class, options):
    model = MTRLClassifier(multi_class=multi_class, reg_lambda=0.01, **options).fit(*ROWS)
    assert 0 <= model.certificate_.relative_gap <= 1e-3
    assert model.score(*ROWS[:2], tasks=ROWS[2]) > 0.75
    assert verify(model, *ROWS).primal == pytest.approx(model.certificate_.primal, rel=1e-6)


@both
def test_exported_formulas_score_like_the_model(multi_class):
    model = MTRLClassifier(multi_class=multi_class).fit(*ROWS)
    scores = model.decision_function(X, tasks=np.full(len(X), "b"))
    for c, formula in enumerate(formulas(model, [1])):
        coef = np.array([term.coefficient for term in formula.terms])
        np.testing.assert_allclose(X @ coef + formula.intercept, scores[:, c], rtol=1e-9, atol=1e-9)
    assert (scores[:, 2] < -1e5).all()  # class z does not occur in b


def test_a_single_class_beside_several():
    y = np.where(TASKS == "a", "x", Y)
    with pytest.raises(ValueError, match="task 'a' has only one class, 'x'"):
        MTRLClassifier().fit(X, y, tasks=TASKS)
    model = MTRLClassifier(on_single_class="constant").fit(X, y, tasks=TASKS)
    assert (model.predict(X, tasks=np.full(len(X), "a")) == "x").all()
    assert model.task_correlation_.shape == (M, M)


def test_intercepts_of_absent_classes_are_a_two_way_fit():
    task, label = np.array([0.0, 1.0, -2.0]), np.array([3.0, 0.5, -1.0, 2.0])
    values = task[:, None] + label
    seen = np.ones((3, 4), dtype=bool)
    seen[0, 1] = seen[2, 3] = False
    np.testing.assert_allclose(fill_absent(np.where(seen, values, 99.0), seen), values, atol=1e-6)
    shifted = values + np.array([[7.0], [0.0], [0.0]])  # a number that a softmax may add to a task
    np.testing.assert_allclose(fill_absent(np.where(seen, shifted, 0.0), seen), shifted, atol=1e-6)


@pytest.mark.parametrize("multi_class", ["softmax", "ovr"])
@pytest.mark.parametrize("classes", [3, 2], ids=["all classes", "a class less"])
def test_a_task_of_several_classes_joins_later(multi_class: str, classes: int, tmp_path: Path) -> None:
    """Its certificate bounds what a fit of everything gains, and the fit of everything is hardly better."""
    rng = np.random.default_rng(5)
    centres = 3 * rng.normal(size=(3, 4))
    tasks, y = np.repeat(["a", "b", "c", "d"], 60), np.tile(np.arange(3), 80)
    X = centres[y] + rng.normal(size=(240, 4)) + np.repeat(0.3 * rng.normal(size=(4, 4)), 60, axis=0)
    late = (tasks == "d") & (np.arange(240) % 4 == 0) & (y < classes)
    old, test = tasks != "d", (tasks == "d") & (np.arange(240) % 4 > 0) & (y < classes)
    options = {"reg_lambda": 0.01, "multi_class": multi_class, "tol": 1e-5, "common": 0.0, "task_weight": "equal"}
    model = MTRLClassifier(**options).fit(X[old], y[old], tasks=tasks[old])
    before = model.coef_.copy()
    added = model.add_task(X[late], y[late], "d")
    everything = MTRLClassifier(**options).fit(X[old | late], y[old | late], tasks=tasks[old | late])
    assert (model.coef_[:3] == before).all()
    assert added.coef.shape == (3, 4)
    assert added.intercept.shape == (3,)
    assert model.seen_classes_.tolist() == everything.seen_classes_.tolist()
    assert added.certificate.dual <= everything.certificate_.primal * (1 + 1e-9)
    assert everything.certificate_.dual <= added.certificate.primal * (1 + 1e-9)
    assert added.certificate.primal < 1.1 * everything.certificate_.primal
    again = verify(model, X[old | late], y[old | late], tasks[old | late])
    assert again.primal == pytest.approx(added.certificate.primal, rel=1e-6)
    score, best = (one.score(X[test], y[test], tasks=tasks[test]) for one in (model, everything))
    assert score > max(best - 0.1, 0.8)
    if classes == 2:  # the class that it does not have is never answered, unless it is taken from the others
        assert set(model.predict(X[tasks == "d"], tasks=tasks[tasks == "d"]).tolist()) == {0, 1}
        shared = model.set_params(absent_classes="share").predict(X[tasks == "d"], tasks=tasks[tasks == "d"])
        assert np.mean(shared[y[tasks == "d"] == 2] == 2) > 0.6
    model.save(tmp_path / "model")
    assert (load(tmp_path / "model").predict(X, tasks=tasks) == model.predict(X, tasks=tasks)).all()


def test_classes_of_rows_without_weight_do_not_count_in_a_new_task() -> None:
    late = TASKS == "d"
    model = MTRLClassifier(reg_lambda=0.01).fit(X[~late], Y[~late], tasks=TASKS[~late])
    weight = (Y[late] != "x").astype(float)
    model.add_task(X[late], Y[late], "d", sample_weight=weight)
    other = MTRLClassifier(reg_lambda=0.01).fit(X[~late], Y[~late], tasks=TASKS[~late])
    other.add_task(X[late][weight > 0], Y[late][weight > 0], "d")
    assert model.seen_classes_[-1].tolist() == other.seen_classes_[-1].tolist() == [False, True, True]
    np.testing.assert_allclose(model.intercept_, other.intercept_)
    with pytest.raises(ValueError, match="only one class, 'x'; it needs rows of at least two classes"):
        other.add_task(X[late], Y[late], "e", sample_weight=(Y[late] == "x").astype(float))


def test_sparse_rows_join_a_model_of_dense_rows() -> None:
    late = TASKS == "d"
    dense, sparse_rows = (MTRLClassifier(reg_lambda=0.01).fit(X[~late], Y[~late], tasks=TASKS[~late]) for _ in range(2))
    dense.add_task(X[late], Y[late], "d")
    sparse_rows.add_task(sparse.csr_array(X[late]), Y[late], "d")
    np.testing.assert_allclose(sparse_rows.coef_, dense.coef_)
