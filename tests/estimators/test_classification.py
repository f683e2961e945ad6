"""MTRLClassifier: scikit-learn on one task, any labels, many classes, single classes, probabilities."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from dmtrl import MTRLClassifier, per_task_scores, task_scorer

TIGHT = {"tol": 1e-7, "max_rounds": 5000}


def related_tasks(k=2, m=3, n=60, seed=0):
    """Tasks with nearly the same k classes, in mixed order."""
    X, y = make_classification(
        m * n, 6, n_informative=5, n_redundant=0, n_classes=k, n_clusters_per_class=1, class_sep=1.5, random_state=seed
    )
    return X, y, np.random.default_rng(seed).permutation(np.repeat(["a", "b", "c"][:m], n))


X, Y, TASKS = related_tasks()
LONG = MTRLClassifier().fit(X, Y, tasks=TASKS)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:600] / 16, y[:600], X[600:] / 16, y[600:]


def test_one_task_is_logistic_regression():
    """mean loss + lam/2 |w|^2 is C * sum of losses + |w|^2 / 2 over lam at C = 1 / (lam n)."""
    lam = 0.01
    theirs = LogisticRegression(C=1 / (lam * len(Y)), tol=1e-8, max_iter=1000).fit(X, Y)
    ours = MTRLClassifier(reg_lambda=lam, **TIGHT).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-3)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)
    weight = np.random.default_rng(0).random(len(Y))
    theirs = LogisticRegression(C=1 / (lam * weight.sum()), tol=1e-8, max_iter=1000).fit(X, Y, sample_weight=weight)
    ours.fit(X, Y, sample_weight=weight)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize(("loss", "factor"), [("hinge", 1.0), ("squared_hinge", 2.0)])
def test_one_task_is_a_linear_svm(loss, factor):
    """liblinear puts the intercept into the penalty, and its squared hinge is twice ours."""
    lam = 0.01
    theirs = LinearSVC(loss=loss, C=1 / (factor * lam * len(Y)), tol=1e-8, max_iter=500_000, random_state=0).fit(X, Y)
    ours = MTRLClassifier(loss, lam, fit_intercept="penalised", **TIGHT).fit(X, Y)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=5e-3)
    assert not hasattr(ours, "predict_proba")
    with pytest.raises(AttributeError) as refusal:
        ours.predict_proba(X)
    assert f"predict_proba is not available with loss={loss!r}; use loss='logistic'" in str(refusal.value.__cause__)


def test_one_vs_rest_on_one_task_is_sklearns(digits):
    X, y, X_test, _ = digits
    lam = 1e-3
    svm = LinearSVC(C=1 / (2 * lam * len(y)), tol=1e-8, max_iter=100_000, random_state=0)
    ours = MTRLClassifier("squared_hinge", lam, fit_intercept="penalised", **TIGHT).fit(X, y)
    theirs = OneVsRestClassifier(svm).fit(X, y)
    np.testing.assert_allclose(ours.decision_function(X_test), theirs.decision_function(X_test), atol=5e-3)


def test_softmax_on_one_task_is_sklearns(digits):
    X, y, X_test, y_test = digits
    lam = 1e-3
    theirs = LogisticRegression(C=1 / (lam * len(y)), tol=1e-8, max_iter=5000).fit(X, y)
    ours = MTRLClassifier(reg_lambda=lam, tol=1e-6).fit(X, y)
    assert ours.coef_.shape == (1, 10, 64)
    np.testing.assert_allclose(ours.predict_proba(X_test), theirs.predict_proba(X_test), atol=5e-3)
    assert ours.score(X_test, y_test) == pytest.approx(theirs.score(X_test, y_test), abs=2e-3)


def test_digits_as_ten_tasks(digits):
    X, y, X_test, y_test = digits
    wide = MTRLClassifier(reg_lambda=1e-4, common=0).fit(X, (y[:, None] == np.arange(10)).astype(int))
    assert wide.predict(X_test).shape == wide.decision_function(X_test).shape == (len(y_test), 10)
    assert wide.score(X_test, (y_test[:, None] == np.arange(10)).astype(int)) > 0.97
    assert wide.task_correlation_.shape == (10, 10)
    assert wide.task_correlation_.to_numpy()[~np.eye(10, dtype=bool)].mean() < 0  # the classes exclude each other


def test_sharing_helps_where_rows_are_few():
    rng = np.random.default_rng(0)
    truth, m, n = rng.normal(size=20), 15, 15
    rows, tasks = rng.normal(size=(m * n, 20)), np.repeat(np.arange(m), n)
    labels = rows @ truth > 0
    new, new_tasks = rng.normal(size=(3000, 20)), rng.integers(0, m, 3000)
    scores = [
        MTRLClassifier(relationship=given).fit(rows, labels, tasks=tasks).score(new, new @ truth > 0, tasks=new_tasks)
        for given in ("learned", "independent")
    ]
    assert scores[0] > scores[1] + 0.1


@pytest.mark.parametrize("labels", [["no", "yes"], [0, 1], [-1, 1], [7, 3], [False, True], np.array([2.0, 5.0])])
def test_any_two_labels(labels):
    labels = np.asarray(labels)
    named = labels[Y]
    model = MTRLClassifier().fit(X, named, tasks=TASKS)
    flip = -1 if labels[0] > labels[1] else 1
    np.testing.assert_allclose(model.coef_, flip * LONG.coef_, atol=0.02)
    assert model.classes_.tolist() == sorted(labels.tolist())
    assert model.predict(X, tasks=TASKS).dtype == named.dtype
    assert model.score(X, named, tasks=TASKS) == pytest.approx(LONG.score(X, Y, tasks=TASKS), abs=0.02)
    assert model.score(X, pd.Series(named.tolist()), tasks=pd.Series(TASKS)) == model.score(X, named, tasks=TASKS)


def test_two_classes():
    score, chance = LONG.decision_function(X, tasks=TASKS), LONG.predict_proba(X, tasks=TASKS)
    assert LONG.coef_.shape == (3, 6)
    np.testing.assert_array_equal(LONG.predict(X, tasks=TASKS), LONG.classes_[(score > 0).astype(int)])
    np.testing.assert_allclose(chance[:, 1], 1 / (1 + np.exp(-score)))
    np.testing.assert_allclose(chance.sum(axis=1), 1)
    np.testing.assert_allclose(LONG.predict_log_proba(X, tasks=TASKS), np.log(chance))


@pytest.mark.parametrize("multi_class", ["softmax", "ovr"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_many_classes_in_many_tasks(form, multi_class):
    X, y, tasks = related_tasks(k=3)
    names = np.array(["red", "green", "blue"])[y]
    model = MTRLClassifier(multi_class=multi_class).fit(form(X), names, tasks=tasks)
    assert model.coef_.shape == (3, 3, 6)
    assert model.intercept_.shape == (3, 3)
    assert model.common_coef_.shape == (3, 6)
    assert model.task_correlation_.index.tolist() == ["a", "b", "c"]
    assert model.task_correlation_.loc["a", "b"] > 0.2  # the tasks have the same classes
    assert model.common_strength_ == 1
    score = model.decision_function(form(X), tasks=tasks)
    assert score.shape == (len(X), 3)
    np.testing.assert_array_equal(model.predict(form(X), tasks=tasks), model.classes_[score.argmax(axis=1)])
    chance = model.predict_proba(form(X), tasks=tasks)
    np.testing.assert_array_equal(chance.argmax(axis=1), score.argmax(axis=1))
    np.testing.assert_allclose(chance.sum(axis=1), 1)
    assert model.score(form(X), names, tasks=tasks) > 0.85
    i = tasks.tolist().index("b")
    np.testing.assert_allclose(score[i], X[i] @ model.coef_[1].T + model.intercept_[1])


@pytest.mark.parametrize("multi_class", ["softmax", "ovr"])
def test_a_class_that_a_task_never_had(multi_class):
    """It is never answered, or answered from what the other tasks know of it."""
    X, y, tasks = related_tasks(k=3)
    keep = ~((tasks == "b") & (y == 2))
    model = MTRLClassifier(multi_class=multi_class).fit(X[keep], y[keep], tasks=tasks[keep])
    assert model.seen_classes_.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    only_b = np.full(len(X), "b")
    assert set(model.predict(X, tasks=only_b)) == {0, 1}
    assert (model.predict_proba(X, tasks=only_b)[:, 2] == 0).all()
    assert (model.predict_log_proba(X, tasks=only_b)[:, 2] == -np.inf).all()
    assert (model.predict_proba(X, tasks=np.full(len(X), "a"))[:, 2] > 0).all()
    model.set_params(absent_classes="share")
    missing = (tasks == "b") & (y == 2)
    assert (model.predict(X[missing], tasks=only_b[missing]) == 2).mean() > 0.4
    assert model.score(X, y, tasks=tasks) > 0.85


def test_softmax_weights_are_repetitions():
    X, y, tasks = related_tasks(k=3)
    times = np.random.default_rng(0).integers(0, 4, size=len(y))
    model = MTRLClassifier(reg_lambda=0.05, tol=1e-8, task_weight="equal")
    weighted = clone(model).fit(X, y, tasks=tasks, sample_weight=times)
    repeated = clone(model).fit(X.repeat(times, axis=0), y.repeat(times), tasks=tasks.repeat(times))
    expected = repeated.predict_proba(X, tasks=tasks)
    np.testing.assert_allclose(weighted.predict_proba(X, tasks=tasks), expected, atol=2e-3)


def test_softmax_is_for_the_logistic_loss():
    with pytest.raises(ValueError, match="multi_class='softmax' requires loss='logistic'"):
        MTRLClassifier("hinge", multi_class="softmax").fit(X, Y, tasks=TASKS)
    with pytest.raises(ValueError, match="multi_class must be 'auto' or 'softmax' or 'ovr'"):
        MTRLClassifier(multi_class="multinomial").fit(X, Y, tasks=TASKS)
    with pytest.raises(ValueError, match="absent_classes must be"):
        MTRLClassifier(absent_classes="skip").fit(X, Y, tasks=TASKS)


def test_tasks_with_labels_of_their_own():
    """Cats and dogs here, good and bad there: the classes are the union, and each task answers with its own."""
    words = np.where(TASKS == "a", np.array(["cat", "dog"])[Y], np.array(["bad", "good"])[Y])
    model = MTRLClassifier().fit(X, words, tasks=TASKS)
    assert model.classes_.tolist() == ["bad", "cat", "dog", "good"]
    assert set(model.predict(X[TASKS == "a"], tasks=TASKS[TASKS == "a"])) == {"cat", "dog"}
    assert model.score(X, words, tasks=TASKS) > 0.85


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("given", ["learned", "independent", np.diag([1.0, 2, 3])])
def test_single_class_as_a_constant(loss, given):
    y = np.where(TASKS == "b", 1, Y)
    model = MTRLClassifier(loss, relationship=given, on_single_class="constant").fit(X, y, tasks=TASKS)
    rest = TASKS != "b"
    if isinstance(given, np.ndarray):
        given = np.diag([1.0, 3])
    without = MTRLClassifier(loss, relationship=given).fit(X[rest], y[rest], tasks=TASKS[rest])
    assert (model.predict(X, tasks=np.full(len(X), "b")) == 1).all()
    np.testing.assert_allclose(model.coef_[[0, 2]], without.coef_, atol=0.02)
    np.testing.assert_allclose(model.task_covariance_[1], 0, atol=1e-12)
    assert np.trace(model.task_covariance_) == pytest.approx(1)
    if loss == "logistic":
        assert (model.predict_proba(X, tasks=np.full(len(X), "b"))[:, 1] > 0.98).all()


def test_columns_of_y_with_missing_labels():
    rng = np.random.default_rng(0)
    numbers = np.where(X[:, :3] > 0, 1.0, 0.0)
    missing = rng.random(numbers.shape) < 0.3
    words = np.where(missing, None, np.array(["no", "yes"], dtype=object)[numbers.astype(int)])
    numbers[missing] = np.nan
    by_number, by_word = (
        MTRLClassifier().fit(X, numbers),
        MTRLClassifier().fit(X, pd.DataFrame(words, columns=[*"pqr"])),
    )
    np.testing.assert_array_equal(by_number.coef_, by_word.coef_)
    assert by_word.tasks_.tolist() == ["p", "q", "r"]
    assert by_word.predict(X).shape == (len(X), 3)
    assert by_number.score(X, numbers) > 0.9
    assert list(per_task_scores(by_word, X, pd.DataFrame(words, columns=[*"pqr"]), metric="accuracy")) == [
        "p",
        "q",
        "r",
    ]
    many = MTRLClassifier().fit(X, np.column_stack([Y, Y + (X[:, 0] > 0)]))
    assert many.predict(X).shape == (len(X), 2)
    assert many.predict_proba(X).shape == (len(X), 2, 3)


def test_scorers_of_every_kind_hand_tasks_on():
    score, chance = LONG.decision_function(X, tasks=TASKS), LONG.predict_proba(X, tasks=TASKS)
    assert task_scorer("accuracy")(LONG, X, Y, TASKS) == LONG.score(X, Y, tasks=TASKS)
    assert task_scorer("roc_auc")(LONG, X, Y, TASKS) == pytest.approx(roc_auc_score(Y, score))
    assert task_scorer("neg_log_loss")(LONG, X, Y, tasks=TASKS) == pytest.approx(-log_loss(Y, chance))
    by_task = per_task_scores(LONG, X, Y, TASKS, "roc_auc")
    assert task_scorer("roc_auc", average="tasks")(LONG, X, Y, TASKS) == pytest.approx(np.mean(list(by_task.values())))
    with sklearn.config_context(enable_metadata_routing=True):
        scores = cross_val_score(MTRLClassifier(), X, Y, cv=3, scoring=task_scorer("roc_auc"), params={"tasks": TASKS})
    assert (scores > 0.8).all()


def test_unknown_task_from_the_common_component():
    seen = TASKS != "c"
    model = MTRLClassifier(unknown_tasks="shared").fit(X[seen], Y[seen], tasks=TASKS[seen])
    assert model.score(X[~seen], Y[~seen], tasks=TASKS[~seen]) > 0.8


@pytest.mark.parametrize("multi_class", ["softmax", "ovr"])
def test_unknown_task_with_several_classes(multi_class):
    X, y, tasks = related_tasks(k=3)
    seen = tasks != "c"
    model = MTRLClassifier(unknown_tasks="shared", multi_class=multi_class).fit(X[seen], y[seen], tasks=tasks[seen])
    assert model.score(X[~seen], y[~seen], tasks=tasks[~seen]) > 0.8
