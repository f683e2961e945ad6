"""School, the ten published splits: MTRLRegressorCV chooses lambda and tau on training rows only.

Run `python -m dmtrl.experiments.school [splits]`; a few seconds a split. Beside it ridge regression of each school
alone and of all rows with a column per school, each with its own lambda by cross-validation.
"""

import sys
import time

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

from dmtrl.datasets import load_school
from dmtrl.selection import MTRLRegressorCV


def rmse(y: np.ndarray, z: np.ndarray) -> float:
    return float(np.sqrt(np.mean((y - z) ** 2)))


def one_split(split: int) -> dict[str, float]:
    school = load_school()
    train, test = school.splits[split]
    # the last column is the constant 1
    X, y, task = school.X[:, :-1].astype(float), school.y.astype(float), school.task
    scaler = StandardScaler().fit(X[train])
    X = scaler.transform(X)
    began = time.perf_counter()
    model = MTRLRegressorCV().fit(X[train], y[train], tasks=task[train])
    seconds = time.perf_counter() - began
    z = model.predict(X[test], tasks=task[test])
    columns = np.hstack([X, np.eye(task.max() + 1)[task]])
    ridge = RidgeCV(np.logspace(-1, 3, 13)).fit(columns[train], y[train])
    alone = np.empty(len(test))
    for k in np.unique(task):
        mine, theirs = train[task[train] == k], task[test] == k
        alone[theirs] = RidgeCV(np.logspace(-1, 3, 13)).fit(X[mine], y[mine]).predict(X[test][theirs])
    return {
        "dmtrl": rmse(y[test], z),
        "explained": 1 - np.var(y[test] - z) / np.var(y[test]),
        "ridge with a column per school": rmse(y[test], ridge.predict(columns[test])),
        "ridge, each school alone": rmse(y[test], alone),
        "lambda": model.reg_lambda_,
        "tau": model.common_strength_,
        "gap": model.certificate_.relative_gap,
        "seconds": seconds,
    }


def main(splits: int = 10) -> None:
    records = []
    for split in range(splits):
        records.append(one_split(split))
        print(
            f"split {split + 1}: " + ", ".join(f"{name} {value:.4g}" for name, value in records[-1].items()), flush=True
        )
    for name in records[0]:
        values = [record[name] for record in records]
        print(f"{name}: mean {np.mean(values):.4g}, deviation {np.std(values, ddof=min(1, splits - 1)):.2g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
