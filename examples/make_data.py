"""Write the files of the two walkthroughs, patients.csv and digits.parquet, from data included in scikit-learn.

Run `python examples/make_data.py [FOLDER]`.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

from dmtrl.datasets import load_digits_tasks


def patients() -> pd.DataFrame:
    """Diabetes patients: six measurements and the progression of the disease after a year.

    A task is a group of patients of one sex and age band. Some blood values are set to missing.
    """
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    sex = np.where(X["sex"] == 1, "women", "men")
    band = pd.cut(X["age"], [0, 40, 50, 60, 100], right=False, labels=["under 40", "40-49", "50-59", "60 and over"])
    names = {"bmi": "bmi", "bp": "blood_pressure", "s1": "cholesterol", "s2": "ldl", "s3": "hdl", "s6": "glucose"}
    table = X[list(names)].rename(columns=names)
    rng = np.random.default_rng(0)
    for column in ("ldl", "hdl", "glucose"):
        table[column] = table[column].mask(rng.random(len(table)) < 0.05)
    table.insert(0, "group", [f"{s}, {b}" for s, b in zip(sex, band, strict=True)])
    return table.assign(progression=y)


def digits() -> pd.DataFrame:
    """Ten tasks, one per digit: does the image of 8 x 8 pixels show that digit? Half of each task's images do."""
    tasks = load_digits_tasks().train
    pixels = [f"row{r}_column{c}" for r in range(8) for c in range(8)]
    table = pd.DataFrame(np.asarray(tasks.X, dtype=np.float32), columns=pixels)
    table.insert(0, "digit", np.repeat(tasks.names, np.diff(tasks.starts)))
    return table.assign(answer=np.where(tasks.y > 0, "yes", "no"))


def main(folder: str = ".") -> None:
    patients().to_csv(Path(folder) / "patients.csv", index=False)
    digits().to_parquet(Path(folder) / "digits.parquet", index=False)
    print("wrote patients.csv and digits.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
