"""The default grid of lambdas."""

from typing import Any

import numpy as np


def default_lambdas(X: Any) -> np.ndarray:
    """A grid from the mean squared row norm down five decades, which makes it independent of the scale of X."""
    squares = X.multiply(X).sum() if hasattr(X, "multiply") else np.einsum("ij,ij->", X, X)
    return lambda_grid(float(squares) / X.shape[0])


def lambda_grid(mean_square: float) -> np.ndarray:
    """The default grid for rows with this mean squared norm."""
    return (mean_square or 1.0) * np.logspace(0, -5, 11)  # 1 where all features are constant
