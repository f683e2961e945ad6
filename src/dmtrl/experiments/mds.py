"""Sentiment of reviews in 22 product domains (the subset in mds.npz): MTRLClassifierCV chooses lambda and tau on
training rows only.

Run `python -m dmtrl.experiments.mds`; some minutes. Balanced rows, folds 0-2 held out, tf-idf with logarithmic counts.
Single-task and pooled logistic regression stand beside it, each with its own lambda by cross-validation.
"""

import time

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegressionCV

from dmtrl.data import TaskData
from dmtrl.datasets import load_mds
from dmtrl.selection import MTRLClassifierCV


def tfidf(train: TaskData, test: TaskData) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    from sklearn.feature_extraction.text import TfidfTransformer

    weights = TfidfTransformer(sublinear_tf=True).fit(train.X)
    return weights.transform(train.X).astype(np.float32), weights.transform(test.X).astype(np.float32)


def labels(data: TaskData) -> np.ndarray:
    return np.repeat(data.names, np.diff(data.starts))


def mean_error(test: TaskData, predicted: np.ndarray) -> float:
    """The share of wrong answers, averaged over domains."""
    wrong = test.y != predicted
    return float(np.mean([wrong[a:b].mean() for a, b in zip(test.starts[:-1], test.starts[1:], strict=True)]))


def main() -> None:
    split = load_mds(tfidf=False)
    train, test = split.train, split.test
    X, X_test = tfidf(train, test)
    tasks, tasks_test = labels(train), labels(test)
    began = time.perf_counter()
    model = MTRLClassifierCV(
        lambdas=np.logspace(-2, -5.5, 8).tolist(),
        commons=(0.0, 0.1, 0.3, 1.0),
        cv=4,
        fit_intercept=False,
        n_jobs=-1,
        verbose=1,
    ).fit(X, train.y, tasks=tasks)
    seconds = time.perf_counter() - began
    error = mean_error(test, model.predict(X_test, tasks=tasks_test))
    print(
        f"dmtrl: mean error {error:.2%} (lambda {model.reg_lambda_:.2g}, tau {model.common_strength_:g}, "
        f"{seconds:.0f} s)"
    )
    print(f"certificate: {model.certificate_}")
    kind = {
        "Cs": np.logspace(-1, 3, 7),
        "cv": 4,
        "use_legacy_attributes": False,
        "scoring": "accuracy",
        "l1_ratios": (0,),
    }
    pooled = LogisticRegressionCV(**kind).fit(X, train.y)
    print(f"pooled logistic regression: mean error {mean_error(test, pooled.predict(X_test)):.2%}")
    alone = np.empty(len(test.y))
    for name in train.names:
        mine, theirs = tasks == name, tasks_test == name
        alone[theirs] = LogisticRegressionCV(**kind).fit(X[mine], train.y[mine]).predict(X_test[theirs])
    print(f"logistic regression, each domain alone: mean error {mean_error(test, alone):.2%}")


if __name__ == "__main__":
    main()
