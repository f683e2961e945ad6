"""Feature maps: random features, which need only a seed and the number of features, and a curve for each feature."""

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.preprocessing import SplineTransformer
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from dmtrl.numerics.checks import is_whole


class RFF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Random Fourier features of the kernel `exp(-gamma |x - x'|^2)`.

    Inner products of mapped rows approximate the kernel. The features are pairs of cosine and sine along directions
    that are orthogonal in blocks of d (orthogonal random features, Yu et al. 2016), which approximate the kernel better
    than independent directions.

    Parameters
    ----------
    n_components : int, default=300
        Number of features. Prefer an even number: an odd one ends with a cosine of random phase.
    gamma : float or "scale", default="scale"
        Parameter of the kernel. "scale" means 1 / (d * variance of X).
    seed : int, default=0
        The same seed and number of input features give the same map.
    width : float, default=1.0
        Widens the kernel: gamma is divided by its square.
    linear : bool, default=False
        Put the features themselves before the random ones, scaled so that rows have a mean squared distance of about
        one from their mean.

    Attributes
    ----------
    directions_ : ndarray of shape (d, ceil(n_components / 2))
        Directions of the cosines and sines.
    phase_ : float
        Phase of the last cosine if n_components is odd.
    gamma_ : float
        Parameter of the kernel.
    scale_ : float
        Factor of the features themselves with linear=True.
    n_features_in_ : int
        Number of features in `fit`.
    feature_names_in_ : ndarray of str
        Names of the features. Only set if X had column names.
    """

    def __init__(
        self,
        n_components: int = 300,
        gamma: float | str = "scale",
        seed: int = 0,
        width: float = 1.0,
        linear: bool = False,
    ):
        self.n_components = n_components
        self.gamma = gamma
        self.seed = seed
        self.width = width
        self.linear = linear

    def fit(self, X: Any, y: Any = None) -> "RFF":
        """Draw the directions.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows. Only their number of features and, with gamma="scale", their variance are used.
        y : object, default=None
            Ignored.

        Returns
        -------
        self : object
            The fitted transformer.
        """
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        if not is_whole(self.n_components) or self.n_components < 1:
            raise ValueError(f"n_components must be a whole number of at least 1, got {self.n_components!r}")
        if not self.width > 0:
            raise ValueError(f"width must be positive, got {self.width!r}")
        d = X.shape[1]
        mean = float(X.mean(dtype=float))
        square = float((X.multiply(X) if hasattr(X, "multiply") else X * X).mean(dtype=float))
        variance = square - mean**2
        scale = 1.0 / (d * variance) if variance > 1e-12 * square else 1.0
        self.scale_ = float(np.sqrt(scale))
        if self.gamma == "scale":
            gamma = scale
        elif isinstance(self.gamma, str) or not self.gamma > 0:
            raise ValueError(f"gamma must be 'scale' or a positive number, got {self.gamma!r}")
        else:
            gamma = float(self.gamma)
        self.gamma_ = gamma / self.width**2
        rng = np.random.Generator(np.random.Philox(self.seed))
        wanted = (self.n_components + 1) // 2
        blocks = [_orthogonal(rng, d, min(d, wanted - begin)) for begin in range(0, wanted, d)]
        self.directions_ = np.sqrt(2 * self.gamma_) * np.hstack(blocks)
        self.phase_ = float(rng.uniform(0, 2 * np.pi))
        return self

    def transform(self, X: Any) -> Any:
        """Map rows to random Fourier features.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows to map.

        Returns
        -------
        {ndarray, sparse matrix} of shape (n, n_components), or (n, d + n_components) with linear=True
            The mapped rows, with the dtype of X; sparse if X is sparse and linear=True.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        angle = safe_sparse_dot(X, self.directions_.astype(X.dtype), dense_output=True)
        pairs = self.n_components // 2
        parts = [
            np.cos(angle[:, :pairs]),
            np.sin(angle[:, :pairs]),
            np.cos(angle[:, pairs:] + X.dtype.type(self.phase_)),
        ]
        mapped = np.hstack(parts) * X.dtype.type((2 / self.n_components) ** 0.5)
        if not self.linear:
            return mapped
        own = X * X.dtype.type(self.scale_)
        return sparse.hstack([own, sparse.csr_array(mapped)], "csr") if sparse.issparse(X) else np.hstack([own, mapped])

    @property
    def _n_features_out(self) -> int:
        """For `get_feature_names_out` and `set_output` of scikit-learn."""
        return self.n_components + (self.n_features_in_ if self.linear else 0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _orthogonal(rng: np.random.Generator, d: int, count: int) -> np.ndarray:
    """Orthogonal columns, each distributed as a standard normal vector."""
    Q, R = np.linalg.qr(rng.standard_normal((d, count)))
    length = np.sqrt(rng.chisquare(d, size=count))
    return Q * (np.sign(np.diag(R)) * length)


class Splines(TransformerMixin, BaseEstimator):
    """A curve for each feature: cubic splines with knots at its quantiles, constant beyond the outer ones.

    A linear model of the mapped rows is a sum of curves, one for each feature. Needs dense rows.

    Parameters
    ----------
    n_knots : int, default=5
        Number of knots of each feature, at least 2. A feature gives `n_knots + 2` mapped ones.

    Attributes
    ----------
    knots_ : ndarray of shape (n_knots, d)
        Quantiles of each feature; of its distinct values, or evenly spaced, where those coincide.
    n_features_in_ : int
        Number of features in `fit`.
    feature_names_in_ : ndarray of str
        Names of the features. Only set if X had column names.
    """

    def __init__(self, n_knots: int = 5):
        self.n_knots = n_knots

    def fit(self, X: Any, y: Any = None) -> "Splines":
        """Place the knots.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows.
        y : object, default=None
            Ignored.

        Returns
        -------
        self : object
            The fitted transformer.
        """
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        if not is_whole(self.n_knots) or self.n_knots < 2:
            raise ValueError(f"n_knots must be a whole number of at least 2, got {self.n_knots!r}")
        self.knots_ = np.column_stack([_knots(column, self.n_knots) for column in X.T.astype(float)])
        together = np.flatnonzero(~(np.diff(self.knots_, axis=0) > 0).all(axis=0))
        if len(together):
            raise ValueError(f"column {together[0]} has values that are too large or too close together for splines")
        return self

    def transform(self, X: Any) -> Any:
        """Map rows to splines.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows to map.

        Returns
        -------
        ndarray of shape (n, (n_knots + 2) * d)
            The mapped rows, with the dtype of X. Those of one feature sum to one.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        inside = np.clip(X.astype(np.float64), self.knots_[0], self.knots_[-1])
        return self._splines().transform(inside).astype(X.dtype)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the mapped features.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Names of the features; by default those of `fit`, or x0, x1, ...

        Returns
        -------
        ndarray of str
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if input_features is None:
            input_features = names
        elif names is not None and not np.array_equal(input_features, names):
            raise ValueError("input_features is not equal to feature_names_in_")
        return np.asarray(self._splines().get_feature_names_out(input_features))

    def _splines(self) -> SplineTransformer:
        return SplineTransformer(knots=self.knots_, extrapolation="constant").fit(self.knots_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _knots(column: np.ndarray, count: int) -> np.ndarray:
    """Knots from the smallest to the largest value. They increase, unless values are too large or too close."""
    low, high = column.min(), column.max()
    high = high if high > low else low + max(1.0, 1e-3 * abs(low))  # a constant feature
    shares = np.linspace(0, 1, count)
    for values in (column, np.unique(column)):
        knots = np.quantile(values, shares)
        if (np.diff(knots) > 1e-12 * np.abs(knots).max()).all():
            return knots
    return np.linspace(low, high, count)


def several_maps(feature_map: Any) -> bool:
    """Whether a `feature_map` argument names several maps to choose from."""
    return isinstance(feature_map, list | tuple) or (isinstance(feature_map, str) and feature_map == "auto")


def candidate_maps(feature_map: Any, seed: int, X: Any) -> list[Any]:
    """The maps to choose from: those of a list, or by default none, a curve for each feature if rows are dense, random
    features of three widths, and those of the middle one side by side with the features themselves."""
    if isinstance(feature_map, str):
        curves = [] if sparse.issparse(X) else [Splines()]
        widths = [RFF(seed=seed, width=width) for width in (0.5, 1.0, 2.0)]
        return [None, *curves, *widths, RFF(seed=seed, linear=True)]
    if len(feature_map) == 0:
        raise ValueError("feature_map is an empty list; list at least one map, or None for the features themselves")
    return list(feature_map)


def get_feature_map(feature_map: Any, seed: int) -> Any:
    """Return an unfitted feature map by name, a clone of a transformer, or None."""
    if feature_map is None:
        return None
    if isinstance(feature_map, str):
        if feature_map not in ("rff", "splines"):
            raise ValueError(
                f"unknown feature_map {feature_map!r}; choose 'rff', 'splines', RFF(n_components, gamma) or any "
                "transformer; a CV estimator also accepts 'auto' and a list"
            )
        return RFF(seed=seed) if feature_map == "rff" else Splines()
    if not (hasattr(feature_map, "fit") and hasattr(feature_map, "transform")):
        raise ValueError(
            f"feature_map must be None, 'rff', 'splines' or a scikit-learn transformer, got {feature_map!r}; "
            "only a CV estimator accepts a list"
        )
    return clone(feature_map)
