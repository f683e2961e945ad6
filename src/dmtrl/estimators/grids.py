"""The default grid of lambdas."""

from typing import Any

import numpy as np

COMMONS, OWNS = (0.0, 1.0, 10.0), (0.0, 3.0)  # without a shared part; with one there is nothing to choose
MOST_ADDED = 6  # values at either end of the grid for deviations


def default_lambdas(X: Any) -> np.ndarray:
    """A grid from the mean squared row norm down five decades, which makes it independent of the scale of X."""
    squares = X.multiply(X).sum() if hasattr(X, "multiply") else np.einsum("ij,ij->", X, X)
    return lambda_grid(float(squares) / X.shape[0])


def lambdas_of_deviations(X: Any) -> np.ndarray:
    """The grid for deviations from a shared part: infinity, which means none, and values from ten times the mean
    squared row norm down three decades. A search extends it at its ends."""
    return np.append(np.inf, default_lambdas(X)[0] * np.logspace(1, -2, 7))


def lambda_grid(mean_square: float) -> np.ndarray:
    """The default grid for rows with this mean squared norm."""
    return (mean_square or 1.0) * np.logspace(0, -5, 11)  # 1 where all features are constant
