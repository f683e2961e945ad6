"""Losses: the built-in ones, custom losses, and `check_loss`, which tests them."""

from dmtrl.losses.base import AnyLoss
from dmtrl.losses.builtin import (
    BUILTIN,
    CLASSIFICATION,
    REGRESSION,
    CustomLoss,
    Loss,
    absolute,
    epsilon_insensitive,
    get_loss,
    hinge,
    huber,
    identity,
    logistic,
    poisson,
    quantile,
    smoothed_hinge,
    squared,
    squared_hinge,
)
from dmtrl.losses.classes import OneVsRest, Softmax

__all__ = [
    "BUILTIN",
    "CLASSIFICATION",
    "REGRESSION",
    "AnyLoss",
    "CustomLoss",
    "Loss",
    "OneVsRest",
    "Softmax",
    "absolute",
    "epsilon_insensitive",
    "get_loss",
    "hinge",
    "huber",
    "identity",
    "logistic",
    "poisson",
    "quantile",
    "smoothed_hinge",
    "squared",
    "squared_hinge",
]
