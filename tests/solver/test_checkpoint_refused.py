"""A checkpoint of another problem, other rows or other custom functions is refused, and so are foreign files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from dmtrl import Checkpoint, MTRLRegressor, MTRLRegressorCV, Settings
from dmtrl.exceptions import CheckpointExistsError
from dmtrl.losses import AnyLoss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import Describe
from dmtrl.relationship import Learned, Prox
from dmtrl.solver.checkpoint.versions import FORMAT
from dmtrl.worker.worker import Worker
from support.checkpoints import halfway, table, version
from support.losses_by_hand import halved_absolute
from support.problems import random_problem
from support.solving import solve_data

pytestmark = pytest.mark.filterwarnings("ignore::dmtrl.NotConvergedWarning")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"reg_lambda": 0.06}, "lambda is 0.06 here and 0.05 there"),
        ({"common": 0.1}, "the relationship is"),
        ({"relationship": np.eye(4)}, "the relationship is"),
        ({"loss": "huber"}, "was saved with other rows, labels, weights, offsets or losses"),
        ({"settings": Settings(seed=1)}, "seed is 1 here and 0 there"),
        ({"workers": 3}, "the number of workers is 3 here and 2 there"),
        ({"shards": [1, 7, 7, 1]}, "the partition"),
    ],
)
def test_another_problem_is_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    data = random_problem()
    how = halfway(data, tmp_path)
    with pytest.raises(ValueError, match=word):
        solve_data(data, resume=tmp_path, **how | change)


def test_other_rows_are_refused(tmp_path: Path) -> None:
    data = random_problem()
    how = halfway(data, tmp_path)
    for name in ("X", "y"):
        values = getattr(data, name).copy()
        values.flat[-1] += 1e-9
        with pytest.raises(ValueError, match=r"worker-.*was saved with other rows"):
            solve_data(replace(data, **{name: values}), resume=tmp_path, **how)


def test_another_loss_of_the_same_name_is_known() -> None:
    """What a worker says of its rows and losses, by which a checkpoint of others is refused."""
    data, own = random_problem(), halved_absolute()
    third = replace(own, value=njit(lambda z, y: abs(y - z) / 3))
    again = replace(own, value=njit(lambda z, y: 0.5 * abs(z - y)))

    def known(loss: AnyLoss) -> object:
        return decode(Worker(data.sources(1)[0], loss).answer(encode(Describe(digest=True)))).digest

    assert known(third) != known(own)
    assert known(again) == known(own), "only written another way"


class Ridge:
    """Somebody's own relationship: none, and a ridge of this strength."""

    name, learned, tau, kappa = "ridge", True, 0.0, 0.0

    def __init__(self, strength: float):
        self._strength = strength
        self.start, self.update = Learned().start, Learned().update

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        return 0.5 * self._strength * float((W**2).sum())

    def conjugate(self, B: np.ndarray) -> float:
        return 0.5 * float((B**2).sum()) / self._strength

    def w_conjugate(self, B: np.ndarray, covariance: Any) -> float:
        return self.conjugate(B)

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        W = V / (1.0 + t * self._strength)
        return Prox(W, self.penalty(W, common), self.update(W), common)


@pytest.mark.parametrize("intercept", [None, 1e-3])
def test_another_relationship_of_the_same_name_is_refused(tmp_path: Path, intercept: float | None) -> None:
    data, settings = random_problem(), Settings(tol=0.0, max_rounds=8)
    more = {"loss": "absolute", "intercept_ridge": intercept, "settings": settings}
    how = halfway(data, tmp_path, stop=4, relationship=Ridge(2.0), **more)
    with pytest.raises(ValueError, match="the relationship at sample weights is"):
        solve_data(data, resume=tmp_path, **how | {"relationship": Ridge(3.0)})
    whole = solve_data(data, **how)
    np.testing.assert_array_equal(solve_data(data, resume=tmp_path, **how).W, whole.W)


@pytest.mark.parametrize(
    ("weight", "other"),
    [
        (np.array([1.0, 2.0]), np.array([1.0, 3.0])),
        (np.float32(0.5), np.float32(0.25)),
        ([np.int64(3), 4.0], [np.int64(3), 5.0]),
        ({"a": np.ones(2)}, None),
    ],
)
def test_a_relationship_may_hold_numpy_scalars(tmp_path: Path, weight: Any, other: Any) -> None:
    mine, another = Ridge(2.0), Ridge(2.0)
    vars(mine).update(weight=weight, tau=np.float64(0.0))
    vars(another).update(weight=other)
    data, settings = random_problem(), Settings(tol=0.0, max_rounds=8)
    how = halfway(data, tmp_path, stop=4, relationship=mine, loss="absolute", settings=settings)
    with pytest.raises(ValueError, match="the relationship is"):
        solve_data(data, resume=tmp_path, **how | {"relationship": another})
    whole = solve_data(data, **how)
    np.testing.assert_array_equal(solve_data(data, resume=tmp_path, **how).W, whole.W)


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    data = random_problem()
    how = halfway(data, tmp_path / "c")
    last = version(tmp_path / "c", 3)
    with pytest.raises(FileNotFoundError, match=r"no complete checkpoint at .*nowhere"):
        solve_data(data, resume=tmp_path / "nowhere", **how)
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        solve_data(data, resume=True, **how)
    with pytest.raises(ValueError, match="every_rounds must be a positive"):
        Checkpoint(tmp_path, every_rounds=0)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"checkpoints cannot be written to .*file is a file"):
        solve_data(data, checkpoint=tmp_path / "file" / "below", **how)
    with pytest.raises(OSError, match="checkpoints cannot be written to"):
        solve_data(data, checkpoint=tmp_path / "file", **how)
    manifest = last / "manifest.json"
    text = manifest.read_text()
    for number, advice in ((99, "install a newer dmtrl"), (1, "start again in another folder")):
        manifest.write_text(text.replace(f'"format": {FORMAT}', f'"format": {number}'))
        with pytest.raises(ValueError, match=f"format {number}, but this dmtrl reads format {FORMAT}: {advice}"):
            solve_data(data, resume=tmp_path / "c", **how)
    manifest.write_text(text)
    worker = next(last.glob("worker-*"))
    content = worker.read_bytes()
    flipped = bytearray(content)
    flipped[content.index(b"alpha.npy") + 200] ^= 1
    for damaged in (content[: len(content) // 2], bytes(flipped), b"", (last / "coordinator.npz").read_bytes()):
        worker.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"worker-.* (is damaged or is not a dmtrl checkpoint file|holds a)"):
            solve_data(data, resume=tmp_path / "c", **how)
    worker.unlink()
    with pytest.raises(FileNotFoundError, match="a shared folder or a URL"):
        solve_data(data, resume=tmp_path / "c", **how)
    (last / "coordinator.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"coordinator.npz is missing, .* name the version before it"):
        solve_data(data, resume=tmp_path / "c", **how)


def test_a_state_that_does_not_belong_to_the_workers_is_refused(tmp_path: Path) -> None:
    """Files of two versions mixed: B must be what the workers' dual variables say."""
    data = random_problem("hinge")
    how = halfway(data, tmp_path, loss="hinge", settings=Settings(tol=1e-6))
    for worker in version(tmp_path, 2).glob("worker-*"):
        (version(tmp_path, 3) / worker.name).write_bytes(worker.read_bytes())
    with pytest.raises(ValueError, match="do not belong to the coordinator's state"):
        solve_data(data, resume=tmp_path, **how)


def test_another_cross_validation_is_refused(tmp_path: Path) -> None:
    X, y, tasks = table()
    model = MTRLRegressorCV(lambdas=(1.0, 0.1), commons=(0.0,), cv=3)
    model.fit(X, y, tasks=tasks, checkpoint=Checkpoint(tmp_path, every_rounds=1))
    with pytest.raises(ValueError, match="folds is 4 here and 3 there"):
        MTRLRegressorCV(lambdas=(1.0, 0.1), commons=(0.0,), cv=4).fit(X, y, tasks=tasks, resume=tmp_path)
    with pytest.raises(ValueError, match="lambda is"):
        MTRLRegressorCV(lambdas=(1.0, 0.2), commons=(0.0,), cv=3).fit(X, y, tasks=tasks, resume=tmp_path)
    for repeated in ({"lambdas": (1.0, 1.0, 0.1)}, {"commons": (0.0, 0.0)}):
        with pytest.raises(ValueError, match="a checkpoint of another problem or of other settings"):
            MTRLRegressorCV(**{"lambdas": (1.0, 0.1), "commons": (0.0,), "cv": 3, **repeated}).fit(
                X, y, tasks=tasks, resume=tmp_path
            )
    single = MTRLRegressor(model.loss, model.reg_lambda_, common=0.0)
    single.fit(X, y, tasks=tasks, checkpoint=Checkpoint(tmp_path / "single", every_rounds=1))
    with pytest.raises(ValueError, match=r"lambda is .* here and None there"):
        model.fit(X, y, tasks=tasks, resume=tmp_path / "single")


def test_new_versions_are_not_written_into_an_old_one(tmp_path: Path) -> None:
    data = random_problem()
    how = halfway(data, tmp_path)
    inside = max(tmp_path.glob("version-*"))
    with pytest.raises(CheckpointExistsError):
        solve_data(data, checkpoint=inside, resume=inside, **how)
    solve_data(data, checkpoint=tmp_path, resume=inside, **how)
