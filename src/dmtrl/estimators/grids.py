"""The default grid of lambdas."""

import numpy as np

from dmtrl.data.task_data import TaskData


def default_lambdas(data: TaskData, count: int = 11) -> np.ndarray:
    """A grid from the mean squared row norm down five decades, which makes it independent of the scale of X."""
    squares = data.X.multiply(data.X).sum() if hasattr(data.X, "multiply") else np.einsum("ij,ij->", data.X, data.X)
    return lambda_grid(float(squares) / data.X.shape[0], count)


def lambda_grid(mean_square: float, count: int = 11) -> np.ndarray:
    """The default grid for rows with this mean squared norm."""
    return (mean_square or 1.0) * np.logspace(0, -5, count)  # 1 where all features are constant
