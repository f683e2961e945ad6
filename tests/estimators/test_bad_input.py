"""What is wrong, where and what to do: every refusal of the estimators is one sentence, read here."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from dmtrl import RFF, MTRLClassifier, MTRLRegressor, MTRLRegressorCV
from dmtrl.data.labels import task_labels

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
Y = X[:, 0] + 0.1 * RNG.normal(size=12)
LABELS = np.tile([0, 1], 6)
TASKS = np.repeat(["north", "south", "east"], 4)
FRAME = pd.DataFrame(X, columns=["age", "size", "price"])
FITTED = MTRLRegressor().fit(X, Y, tasks=TASKS)


def spoil(array, row, column, value):
    array = array.copy()
    array[row, column] = value
    return array


def refuses(sentence):
    return pytest.raises(ValueError, match=sentence)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, sparse.csr_array])
def test_not_finite_in_X(value, word, form):
    where = rf"task 'south', row 5, column 2: X contains {word}.*; impute it or drop the row"
    with refuses(where):
        MTRLRegressor().fit(form(spoil(X, 5, 2, value)), Y, tasks=TASKS)
    with refuses(where):
        FITTED.predict(form(spoil(X, 5, 2, value)), tasks=TASKS)
    with refuses(rf"^row 5, column 2: X contains {word}"):
        MTRLRegressor().fit(form(spoil(X, 5, 2, value)), Y)


@pytest.mark.parametrize(
    "frame", [lambda f: f, pl.from_pandas, lambda f: pa.Table.from_pandas(f, preserve_index=False)]
)
def test_not_finite_in_a_frame_is_named_by_its_column(frame):
    with refuses(r"task 'east', row 9, column 'price': X contains infinity"):
        MTRLRegressor().fit(frame(FRAME.assign(price=spoil(X, 9, 2, np.inf)[:, 2])), Y, tasks=TASKS)
    with refuses(r"task 'east', row 9, column 'price': X contains NaN"):
        missing = FRAME.assign(price=pd.array([None if i == 9 else 1.0 for i in range(12)], dtype="Float64"))
        MTRLRegressor().fit(frame(missing), Y, tasks=TASKS)


def test_not_finite_in_a_list_of_tasks_is_numbered_within_the_task():
    parts = {name: (X[name == TASKS], Y[name == TASKS]) for name in ("north", "south")}
    parts["south"] = (spoil(parts["south"][0], 1, 0, np.nan), parts["south"][1])
    with refuses(r"task 'south', row 1, column 0: X contains NaN"):
        MTRLRegressor().fit(parts)


def test_not_finite_in_y():
    bad = Y.copy()
    bad[6] = np.nan
    with refuses(r"task 'south', row 6: y contains NaN or None; drop the row"):
        MTRLRegressor().fit(X, bad, tasks=TASKS)
    bad[6] = np.inf
    with refuses(r"task 'south', row 6: y contains infinity"):
        MTRLRegressor().fit(X, bad, tasks=TASKS)
    with refuses(r"task 0, row 6: y contains infinity"):  # in a 2-D y NaN is a missing label, infinity is not
        MTRLRegressor().fit(X, np.column_stack([bad, Y]))
    words = np.array(["no", "yes"], dtype=object)[LABELS]
    words[3] = None
    with refuses(r"task 'north', row 3: y contains NaN or None"):
        MTRLClassifier().fit(X, words, tasks=TASKS)


def test_text():
    with refuses(r"row 0, column 'city': X contains 'Rome', which is not a number; encode .* as task_column"):
        MTRLRegressor().fit(FRAME.assign(city="Rome"), Y, tasks=TASKS)
    with refuses(r"row 2, column 1: X contains 'big', which is not a number"):
        MTRLRegressor().fit(spoil(X.astype(object), 2, 1, "big"), Y)
    with refuses(r"row 0, column 'city': X contains 'Rome'"):
        MTRLRegressor().fit(pl.from_pandas(FRAME).with_columns(city=pl.lit("Rome")), Y, tasks=TASKS)
    with refuses(r"row 4: y contains 'many', which is not a number"):
        MTRLRegressor().fit(X, [*Y[:4], "many", *Y[5:]])
    with refuses(r"task 'south', row 4: y contains 'many', which is not a number"):
        MTRLRegressor().fit(X, np.array([*Y[:4], "many", *Y[5:]], dtype=object), tasks=TASKS)


def test_wrong_shapes():
    with refuses(r"y must hold one value per row of X .*: X has 12 rows, y has shape \(11,\)"):
        MTRLRegressor().fit(X, Y[1:], tasks=TASKS)
    with refuses(r"y must hold one value per row of X .*, y has shape \(12, 1, 1\)"):
        MTRLRegressor().fit(X, Y[:, None, None])
    with refuses(r"tasks must hold one value per row of X .*: X has 12 rows, tasks has shape \(11,\)"):
        MTRLRegressor().fit(X, Y, tasks=TASKS[1:])
    with refuses(r"sample_weight must hold one value per row of X .*: X has 12 rows, sample_weight has shape \(3,\)"):
        MTRLRegressor().fit(X, Y, tasks=TASKS, sample_weight=np.ones(3))
    with refuses(r"Expected 2D array, got 1D array"):
        MTRLRegressor().fit(Y, Y)
    with refuses(r"X must be 2-dimensional, got a scalar"):
        MTRLRegressor().fit(3.0, Y)
    with refuses(r"X has 2 features, but MTRLRegressor is expecting 3 features"):
        FITTED.predict(X[:, :2], tasks=TASKS)
    with refuses(r"feature names should match"):
        MTRLRegressor().fit(FRAME, Y).predict(FRAME.rename(columns={"age": "years"}))
    with refuses(r"requires y to be passed, but the target y is None"):
        MTRLRegressor().fit(X, tasks=TASKS)


def test_lists_of_tasks_that_do_not_fit():
    with refuses(r"task 'b': X has shape \(4, 3\), y has shape \(3,\); they must have the same number of rows"):
        MTRLRegressor().fit({"a": (X[:4], Y[:4]), "b": (X[4:8], Y[4:7])})
    with refuses(r"task 'b': .* sample_weight has shape \(2,\); they must have the same number of rows"):
        MTRLRegressor().fit({"a": (X[:4], Y[:4], Y[:4]), "b": (X[4:8], Y[4:8], Y[:2])})
    with refuses(r"task 1 has 2 features, but task 0 has 3"):
        MTRLRegressor().fit([(X[:4], Y[:4]), (X[4:8, :2], Y[4:8])])
    with refuses(r"task 'b' has no rows; leave it out"):
        MTRLRegressor().fit({"a": (X[:4], Y[:4]), "b": (X[:0], Y[:0])})
    with refuses(r"there are no tasks"):
        MTRLRegressor().fit({})
    with refuses(r"either all tasks or no task must have sample weights"):
        MTRLRegressor().fit([(X[:4], Y[:4]), (X[4:8], Y[4:8], np.ones(4))])
    with refuses(r"a list or dict of \(X_i, y_i\) already assigns rows to tasks"):
        MTRLRegressor().fit([(X[:4], Y[:4]), (X[4:8], Y[4:8])], tasks=TASKS)


def test_task_labels():
    with refuses(r"row 2: the task label is missing; fill it in or drop the row"):
        MTRLRegressor().fit(X, Y, tasks=[*TASKS[:2], None, *TASKS[3:]])
    with refuses(r"row 2: the task label is missing"):
        MTRLRegressor().fit(X, Y, tasks=pd.Series([*TASKS[:2], None, *TASKS[3:]], dtype="string"))
    with refuses(r"row 2: the task label is missing"):
        MTRLRegressor().fit(X, Y, tasks=[0.0, 1.0, np.nan] * 4)
    with refuses(r"the task labels mix int and str; convert them to one type"):
        MTRLRegressor().fit(X, Y, tasks=np.array([1, *TASKS[1:]], dtype=object))
    with refuses(r"the columns of a 2-D y are the tasks; pass a 1-D y"):
        MTRLRegressor().fit(X, np.column_stack([Y, Y]), tasks=TASKS)
    assert task_labels([1e300, -1e300, 2.0], 3).tolist() == [1e300, -1e300, 2.0]  # not integers that overflow


def test_task_column():
    table = FRAME.assign(school=TASKS)
    with refuses(r"task_column='class' is not a column of X, which has 'age', 'size', 'price', 'school'"):
        MTRLRegressor(task_column="class").fit(table, Y)
    with refuses(r"task_column='school': X has no column names; use an index from 0 to 2"):
        MTRLRegressor(task_column="school").fit(X, Y)
    with refuses(r"task_column=3: X has no column names; use an index from 0 to 2"):
        MTRLRegressor(task_column=3).fit(X, Y)
    with refuses(r"task_column=1.5: X has no column names; use an index from 0 to 2"):
        MTRLRegressor(task_column=1.5).fit(X, Y)
    with refuses(r"both tasks and task_column are set"):
        MTRLRegressor(task_column="school").fit(table, Y, tasks=TASKS)
    with refuses(r"task_column='school' is not a column of X"):
        MTRLRegressor(task_column="school").fit(table, Y).predict(FRAME)


def test_unknown_task_at_predict():
    with refuses(r"unknown task 'west': the model was fitted on 'east', 'north', 'south'; set unknown_tasks='shared'"):
        FITTED.predict(X[:1], tasks=["west"])
    with refuses(r"unknown task 7: the model was fitted on 'east'"):
        FITTED.predict(X[:1], tasks=[7])
    with refuses(r"unknown task 'west'"):
        FITTED.score(X[:2], Y[:2], tasks=["east", "west"])
    many = MTRLRegressor(relationship="independent").fit(X, Y, tasks=np.arange(12))
    with refuses(r"unknown task 99: the model was fitted on 0, 1, 2, 3, 4 and 7 more;"):
        many.predict(X[:1], tasks=[99])
    with refuses(r"task 99: .*, and has nothing that tasks share to predict other tasks from"):
        many.set_params(unknown_tasks="shared").predict(X[:1], tasks=[99])
    with refuses(r"the model has 3 tasks \('east', 'north', 'south'\); pass the task of each row as tasks="):
        FITTED.predict(X)
    with refuses(r"the model was fitted without tasks; do not pass tasks"):
        MTRLRegressor().fit(X, Y).predict(X, tasks=TASKS)


def test_empty_task():
    with refuses(r"task 1 has no labels: all values in its column of y are missing; leave it out"):
        MTRLRegressor().fit(X, np.column_stack([Y, np.full(12, np.nan)]))
    with refuses(r"task 'q' has no labels"):
        MTRLClassifier().fit(X, pd.DataFrame({"p": LABELS, "q": [None] * 12}))
    with refuses(r"all rows of task 'south' have sample weight zero; leave the task out"):
        MTRLRegressor().fit(X, Y, tasks=TASKS, sample_weight=(TASKS != "south").astype(float))
    with refuses(r"0 sample\(s\)"):
        MTRLRegressor().fit(X[:0], Y[:0])


def test_weights():
    with refuses(r"task 'north', row 1: sample_weight must be finite and non-negative, got -1.0"):
        MTRLRegressor().fit(X, Y, tasks=TASKS, sample_weight=[1, -1.0] * 6)
    with refuses(r"task 'north', row 0: sample_weight must be finite and non-negative, got nan"):
        MTRLRegressor().fit(X, Y, tasks=TASKS, sample_weight=[np.nan] * 12)


def test_classes():
    one = np.where(TASKS == "south", "yes", np.where(LABELS, "yes", "no"))
    with refuses(r"task 'south' has only one class, 'yes'; leave it out, or set on_single_class='constant'"):
        MTRLClassifier().fit(X, one, tasks=TASKS)
    with refuses(r"every task has only one class, such as 3; classification needs two"):
        MTRLClassifier(on_single_class="constant").fit(X, np.full(12, 3), tasks=TASKS)
    with refuses(r"Unknown label type: continuous"):
        MTRLClassifier().fit(X, Y, tasks=TASKS)
    counts = np.where(np.arange(12) == 7, -2.0, 3.0)
    with refuses(rf"task '{TASKS[7]}', row 7: the poisson loss needs non-negative counts, but y contains -2"):
        MTRLRegressor("poisson").fit(X, counts, tasks=TASKS)


@pytest.mark.parametrize("name", ["commons", "owns"])
def test_strengths_to_try_must_be_a_list(name):
    with refuses(rf"{name} must be a list of numbers, got 'many'"):
        MTRLRegressorCV(**{name: "many"}).fit(X, Y, tasks=TASKS)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (
            {"loss": "hinge"},
            "the hinge loss is for classification; MTRLRegressor accepts absolute",
        ),
        ({"loss": "cubic"}, "unknown loss 'cubic'; choose one of absolute"),
        ({"reg_lambda": 0}, "reg_lambda must be positive and finite, got 0"),
        ({"reg_lambda": np.nan}, "reg_lambda must be positive and finite, got nan"),
        ({"common": -1}, "must be at least 0 and finite, got -1"),
        ({"own": -1}, "must be at least 0 and finite, got -1"),
        ({"own": "x"}, "must be at least 0 and finite, got 'x'"),
        ({"own": None}, "must be at least 0 and finite, got None"),
        ({"common": "much"}, "common must be 'auto' or a number of at least 0, got 'much'"),
        ({"common": None}, "common must be 'auto' or a number of at least 0, got None"),
        ({"relationship": "friends"}, "unknown relationship 'friends'; choose learned, independent"),
        ({"relationship": np.eye(2)}, "the task relationship has 2 tasks, the data has 3"),
        ({"fit_intercept": "free"}, "fit_intercept must be True or False or 'penalised', got 'free'"),
        ({"feature_map": "fourier"}, "unknown feature_map 'fourier'; choose 'rff'"),
        ({"feature_map": 3}, "feature_map must be None, 'rff', 'splines' or a scikit-learn transformer, got 3"),
        ({"feature_map": RFF(n_components=0)}, "n_components must be a whole number of at least 1, got 0"),
        ({"feature_map": RFF(n_components=2.5)}, "n_components must be a whole number of at least 1, got 2.5"),
        ({"feature_map": RFF(gamma=-1.0)}, "gamma must be 'scale' or a positive number, got -1.0"),
        ({"unknown_tasks": "guess"}, "unknown_tasks must be 'raise' or 'shared', got 'guess'"),
        ({"engine": "steam"}, "engine must be 'local', 'ray', LocalOptions"),
        ({"tol": -1}, "tol must be at least 0"),
        ({"max_rounds": 0}, "max_rounds must be an integer of at least 1"),
        ({"n_jobs": 0}, "n_jobs must not be 0"),
    ],
)
def test_parameters(parameters, sentence):
    with refuses(sentence):
        MTRLRegressor(**parameters).fit(X, Y, tasks=TASKS)


def test_parameters_of_the_classifier():
    with refuses("the squared loss is for regression; MTRLClassifier accepts hinge, logistic"):
        MTRLClassifier("squared").fit(X, LABELS)
    with refuses("on_single_class must be 'raise' or 'constant', got 'drop'"):
        MTRLClassifier(on_single_class="drop").fit(X, LABELS)


def test_a_column_name_as_tasks_and_a_lambda_in_quotes():
    X, y = np.eye(4), np.arange(4.0)
    with pytest.raises(ValueError, match=r"got the single value 'shop'; for a column of X use task_column='shop'"):
        MTRLRegressor().fit(X, y, tasks="shop")
    with pytest.raises(ValueError, match=r"reg_lambda must be positive and finite, got '0.1'"):
        MTRLRegressor(reg_lambda="0.1").fit(X, y)
