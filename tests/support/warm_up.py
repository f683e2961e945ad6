"""Compile the kernels once, for every precision and layout, before test processes run side by side and all would do
it.
"""

import numpy as np

from dmtrl import Execution, Problem, Settings, solve
from dmtrl_lab.baselines import centralised_mtrl, ssdca
from support.problems import random_problem

if __name__ == "__main__":
    for dtype in (np.float64, np.float32):
        pictures = random_problem("squared", m=2, d=40, rows=5, dtype=dtype)
        pictures.X[:, 1:] = 0.0
        solve(Problem.of(pictures, loss="squared", reg_lambda=1.0), Execution(settings=Settings(max_rounds=1, tol=0.0)))
        for csr in (False, True):
            data = random_problem("squared", m=2, rows=5, dtype=dtype, csr=csr)
            solve(Problem.of(data, loss="squared", reg_lambda=1.0), Execution(settings=Settings(max_rounds=1, tol=0.0)))
            ssdca(data, "squared", 1.0, omega_steps=1, passes=1)
            centralised_mtrl(data, "huber", 1.0, omega_steps=1, w_tol=0.5)
