"""The messages of a study before and after the rounds, between the coordinator and a site. See also `rounds.py`.

Each request is a dataclass, and `ANSWERS` names the class of its answer. They are idempotent: a site that receives one
again answers with the same bits. Counts and sums are taken over the rows that the fit uses; rows, labels and texts of a
site's data never appear in a message.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Hello:
    """Asks a site to take part in the study with this hash. `protocol`: see protocol/__init__.py; `dmtrl`: the version
    of the package, which is only shown."""

    study: str
    protocol: int
    dmtrl: str


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """For each task of the study: its rows at this site, 0 where the site leaves it out; and -1 or 1 if all of them
    have this class, else 0. `protocol`, `dmtrl`: as in `Hello`."""

    protocol: int
    dmtrl: str
    rows: np.ndarray
    single: np.ndarray


@dataclass(frozen=True, kw_only=True)
class CountCells:
    """Asks for counts and sums of the columns of the study."""


@dataclass(frozen=True, kw_only=True)
class CellCounts:
    """For each number or date: how many cells are present, and their sum. For each category: the rows of each level,
    then of missing cells and of other values, one category after the other."""

    present: np.ndarray
    sums: np.ndarray
    levels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class MeasureSpread:
    """Asks for the sums of squared distances from these means, one for each number or date."""

    means: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Spread:
    squares: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SumFeatures:
    """Asks for the sums of the prepared features and of the target. `preparation`: as JSON."""

    preparation: str


@dataclass(frozen=True, kw_only=True)
class FeatureSums:
    features: np.ndarray
    target: float


@dataclass(frozen=True, kw_only=True)
class MeasureNorms:
    """Asks for the sum of squared distances of rows and of targets from these centres."""

    preparation: str
    x_centre: np.ndarray
    y_centre: float


@dataclass(frozen=True, kw_only=True)
class Norms:
    features: float
    target: float


@dataclass(frozen=True, kw_only=True)
class Begin:
    """The prepared problem. `coordinates`: as JSON, without `x_centre`. `numbers`: of the site's tasks among all that
    are fitted, -1 for the others.

    The site stores it, so that it can answer rounds after a restart.
    """

    study: str
    preparation: str
    coordinates: str
    x_centre: np.ndarray
    numbers: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Begun:
    """`problem`: a digest of `Begin`, so that each problem counts as a run."""

    features: int
    units: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """Asks for the release `number` of a private study, at a point for each fitted task: see noise/releases.py."""

    study: str
    number: int
    point: np.ndarray
    step: float


@dataclass(frozen=True, kw_only=True)
class Released:
    """Noisy numbers of each task, the standard deviation of their noise, and the point at which they were made: that of
    the first request for this release. Every later request gets the same bytes."""

    number: int
    point: np.ndarray
    values: np.ndarray
    std: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ShareKey:
    """Begins a session of masked sums."""

    study: str
    session: str


@dataclass(frozen=True, kw_only=True)
class SharedKey:
    """The public key of the site for this session."""

    key: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SumUp:
    """Asks for the part of the site in a masked sum. keys: public ones of all sites. question: see masks/site.py;
    text, numbers: what it needs. counter: of the questions of a session, from 0."""

    study: str
    session: str
    counter: int
    question: str
    text: str
    numbers: np.ndarray
    keys: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Integers that are random by themselves; over all sites the masks cancel."""

    counter: int
    values: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Publish:
    """Asks for the final weights of the site's tasks, if the study gives them to the coordinator."""

    study: str


@dataclass(frozen=True, kw_only=True)
class Published:
    weights: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The result: weights of the tasks that the site receives, in the coordinates of `Begin`, and the certificate.

    `names`: of these tasks, as JSON.
    """

    study: str
    names: str
    weights: np.ndarray
    common: np.ndarray
    reg_lambda: float
    common_strength: float
    primal: float
    dual: float
    converged: bool
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Sums over the held-out rows of each task of the site; `wrong` counts wrong classes."""

    rows: np.ndarray
    loss: np.ndarray
    squared_error: np.ndarray
    wrong: np.ndarray


ANSWERS: dict[type, type] = {
    Hello: Welcome,
    CountCells: CellCounts,
    MeasureSpread: Spread,
    SumFeatures: FeatureSums,
    MeasureNorms: Norms,
    Begin: Begun,
    Release: Released,
    ShareKey: SharedKey,
    SumUp: Masked,
    Publish: Published,
    Finish: Finished,
}
