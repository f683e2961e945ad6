"""Writes versions of a checkpoint during a computation, and resumes from one.

A computation is one run, or the runs of a cross-validation followed by the final one. A version holds the fits of the
cross-validation that are finished and the state of the current run, at the end of a round.
"""

import contextlib
import secrets
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dmtrl import storage
from dmtrl.engines.base import Engine
from dmtrl.exceptions import CheckpointExistsError, CheckpointWarning
from dmtrl.protocol.rounds import Save
from dmtrl.solver.checkpoint import versions
from dmtrl.solver.checkpoint.identity import require_same
from dmtrl.solver.checkpoint.options import Checkpoint, PathLike, absolute, check_path, is_due
from dmtrl.solver.checkpoint.versions import Arrays, Version
from dmtrl.solver.outcome import StartPoint
from dmtrl.solver.problem import Strengths

FIT = "fit"  # the run on all rows; other runs are paths of a cross-validation


class FitKey(NamedTuple):
    """A fit of a search: the strengths of the candidate, and the fold."""

    strengths: Strengths
    fold: int


class PathEnd(NamedTuple):
    """Where the last fit of a path ended: its weights and its step size."""

    point: StartPoint
    step: float


@dataclass
class FinishedFits:
    """The fits of a cross-validation that are finished."""

    grid: dict[str, Any] = field(default_factory=dict)  # what it tries
    scores: dict[FitKey, dict[str, np.ndarray]] = field(default_factory=dict)  # held-out sums by task
    ends: dict[int, PathEnd] = field(default_factory=dict)  # by fold: from where its path continues
    points: dict[FitKey, StartPoint] = field(default_factory=dict)  # the weights of candidates that may be the choice

    def keep_points(self, chosen: Collection[Strengths]) -> None:
        """Drop the weights of all other candidates."""
        self.points = {key: point for key, point in self.points.items() if key.strengths in chosen}


@dataclass(frozen=True)
class RunInProgress:
    """A run between two rounds; without a name, a path between two runs."""

    name: str | None = None
    problem: Mapping[str, Any] = field(default_factory=dict)
    state: Callable[[], Arrays] = dict


class CheckpointWriter:
    """Writes versions into a folder and keeps the newest two."""

    def __init__(self, checkpoint: Checkpoint, resumed: Version | None = None):
        self.checkpoint = checkpoint
        self.last = None if resumed is None else resumed.folder  # the newest complete version
        self.written = 0
        # part of the names of the versions: the same as in the run it resumes, unless that folder was renamed
        self._mark = (resumed and versions.mark_of(resumed.folder)) or secrets.token_hex(4)
        self._rounds, self._saved_at, self._warned = 0, time.monotonic(), False
        home = checkpoint.folder
        try:
            storage.check_folder(home)
            present = versions.versions_in(home)
        except OSError as error:
            raise OSError(f"checkpoints cannot be written to {home}: {error}") from error
        # versions that this run replaces: those it resumes from, or complete ones of a run that starts again
        own = [one for one in present if versions.mark_of(one) == self._mark]
        self._replaced = own if resumed is not None else [one for one in present if versions.is_complete(one)]
        if resumed is not None and versions.home_of(resumed.folder) != versions.home_of(home):
            elsewhere = versions.versions_in(versions.home_of(resumed.folder))
            self._replaced += [one for one in elsewhere if versions.mark_of(one) == self._mark]
        self._next = 1 + max(map(versions.number_of, present), default=0)

    def count_round(self) -> None:
        self._rounds += 1

    def is_due(self) -> bool:
        return is_due(self.checkpoint, self._rounds, time.monotonic() - self._saved_at)

    def save(self, engines: Iterable[Engine], header: Mapping[str, Any], arrays: Arrays) -> None:
        """Write a version. If that fails there is a warning, and the version before stays."""
        folder = versions.folder_of(self.checkpoint.folder, self._next, self._mark)
        # errors that an engine raises here (a lost worker, unreadable rows) are not about checkpoints
        request = Save(to=folder, last=self.last or "")
        answers = [answer for engine in engines for answer in engine.broadcast(request).values()]
        try:
            errors = [answer.error for answer in answers if answer.error is not None]
            if errors:
                raise OSError(errors[0])
            files = [str(saved.file) for saved in answers if not saved.kept]
            versions.write(folder, header, arrays, files)
        except OSError as error:
            self._warn(error)
            with contextlib.suppress(OSError):
                storage.remove(folder)
            return
        finally:
            self._rounds, self._saved_at = 0, time.monotonic()
        keep = {folder, self.last}  # a worker that is lost now may still need the version before
        self.last, self._next, self.written = folder, self._next + 1, self.written + 1
        with contextlib.suppress(OSError):
            for old in versions.versions_in(self.checkpoint.folder):
                if old not in keep and (old.endswith(self._mark) or old in self._replaced):
                    versions.remove(old)

    def clear(self, replaced: bool = True) -> None:
        """Remove the versions of this run and, with `replaced`, those it replaces. Other files stay."""
        present = versions.versions_in(self.checkpoint.folder)
        own = [one for one in present if one.endswith(self._mark) and one not in self._replaced]
        for version in own + (self._replaced if replaced else []):
            versions.remove(version)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            kept = f"the last one, {self.last}, is kept" if self.last else "there is none yet"
            warnings.warn(
                f"a checkpoint could not be written ({error}); {kept}, and the run continues",
                CheckpointWarning,
                stacklevel=2,
            )
        self._warned = True


class CheckpointSession:
    """The checkpoints of a computation, through all its runs. Without a writer it writes nothing. `paths.py` has the
    session of one path of a cross-validation."""

    def __init__(self, writer: CheckpointWriter | None = None, resumed: Version | None = None):
        self.writer = writer
        self.fits = FinishedFits() if resumed is None else _read_fits(resumed)
        self._resumed = resumed  # until a run continues from it
        self._resumed_paths: Version | None = None  # of a cross-validation
        self.not_entered: set[int] = set()  # folds whose paths the checkpoint holds and that did not continue yet

    @property
    def active(self) -> bool:
        return self.writer is not None

    @property
    def last(self) -> str | None:
        """The folder of the newest complete version."""
        return self.writer.last if self.writer is not None else None

    def resume_search(self, grid: Mapping[str, Any]) -> None:
        """Refuse the checkpoint of another search."""
        resumed = self._resumed
        if resumed is not None:
            require_same(resumed.folder, grid, self.fits.grid)
            if resumed.header["run"] is None:
                self._resumed, self._resumed_paths = None, resumed
                self.not_entered = {int(fold) for fold in resumed.header["paths"]}
        self.fits.grid = dict(grid)

    def resumed_path(self, fold: int) -> Version | None:
        """The path of a fold as the checkpoint left it; None if it was not in progress."""
        resumed = self._resumed_paths
        if resumed is None or str(fold) not in resumed.header["paths"]:
            return None
        return Version(resumed.folder, resumed.header["paths"][str(fold)], _under(f"path-{fold}", resumed.arrays))

    def take_resumed_path(self, fold: int) -> Version | None:
        """The same, once: where a grid grows, a path is entered again and goes on from its own end."""
        resumed = self.resumed_path(fold)
        if resumed is not None:
            assert self._resumed_paths is not None
            del self._resumed_paths.header["paths"][str(fold)]
        return resumed

    def pass_over_path(self, fold: int) -> None:
        """A path of the checkpoint that was saved after its last fit has nothing to continue."""
        resumed = self.resumed_path(fold)
        if resumed is not None and resumed.header["run"] is None:
            assert self._resumed_paths is not None
            del self._resumed_paths.header["paths"][str(fold)]
            self.not_entered.discard(fold)

    def resume_run(self, name: str, problem: Mapping[str, Any]) -> Version | None:
        """The version from which the run of this name continues; None: it starts at its beginning."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return None
        require_same_run(resumed, name, problem)
        return Version(resumed.folder, resumed.header, _under("run", resumed.arrays))

    def round_done(self, engine: Engine, run: RunInProgress, over: bool, stopping: bool) -> None:
        """After every round. `over`: it was the last one; `stopping`: the computation is about to be interrupted."""
        if self.writer is None:
            return
        self.writer.count_round()
        if over or stopping or self.writer.is_due():
            arrays = {f"run.{key}": values for key, values in run.state().items()}
            self._save([engine], {"run": run.name, "problem": run.problem, "paths": {}}, arrays)

    def save_paths(self, engines: Mapping[int, Engine], paths: Mapping[int, tuple[RunInProgress, Arrays]]) -> None:
        """Write a version of a cross-validation; both arguments are by fold."""
        arrays = {f"path-{fold}.{key}": values for fold, (_, state) in paths.items() for key, values in state.items()}
        under_way = {str(fold): {"run": path.name, "problem": path.problem} for fold, (path, _) in paths.items()}
        self._save(engines.values(), {"run": None, "problem": {}, "paths": under_way}, arrays)

    def _save(self, engines: Iterable[Engine], header: Mapping[str, Any], arrays: Arrays) -> None:
        assert self.writer is not None
        fits = self.fits
        keys, points = list(fits.scores), list(fits.points)
        header = {
            **header,
            "grid": fits.grid,
            "fits": [_to_json(key) for key in keys],
            "points": [_to_json(key) for key in points],
            "ends": list(fits.ends),
        }
        for name in fits.scores[keys[0]] if keys else ():
            arrays[f"score.{name}"] = np.array([fits.scores[key][name] for key in keys])
        if points:
            arrays["point.W"] = np.array([fits.points[key].W for key in points])
            arrays["point.common"] = np.array([fits.points[key].common for key in points])
        for fold, (point, step) in fits.ends.items():
            arrays[f"end-{fold}.W"], arrays[f"end-{fold}.common"] = point
            arrays[f"end-{fold}.step"] = np.array(step)
        self.writer.save(engines, header, arrays)

    def start_again(self, keep_fits: bool = False) -> "CheckpointSession":
        """For a computation that starts again on other workers: its versions go into a subfolder. `keep_fits`: the
        tasks are the same, so that finished fits of a cross-validation are not repeated."""
        session = CheckpointSession()
        if self.writer is not None:
            checkpoint = self.writer.checkpoint
            inside = replace(checkpoint, path=versions.free_subfolder(checkpoint.folder))
            session = CheckpointSession(CheckpointWriter(inside))
        if keep_fits:
            session.fits = self.fits
        return session


def open_session(
    checkpoint: "PathLike | Checkpoint | CheckpointSession | None",
    resume: PathLike | bool | None,
    replace_others: bool = False,
) -> CheckpointSession:
    """From the `checkpoint` and `resume` arguments. resume=True continues from the checkpoint if there is one; a path
    must hold one, and is where checkpoints are written unless `checkpoint` names another folder. A folder with the
    checkpoint of another run is refused, unless it may be replaced."""
    if isinstance(checkpoint, CheckpointSession):
        return checkpoint
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    source = None  # the version to resume from, or its home
    if isinstance(resume, bool) and resume:
        if checkpoint is None:
            raise ValueError("resume=True needs checkpoint=, the folder to resume from")
        source = checkpoint.folder if versions.newest(checkpoint.folder) else None
    elif resume is not None and not isinstance(resume, bool):
        check_path("resume", resume)
        source = absolute(resume)
        checkpoint = checkpoint or Checkpoint(versions.home_of(source))
    if checkpoint is None:
        return CheckpointSession()
    # a run removes the versions that it replaces: those of another run must not be among them
    own = resume is True or (source is not None and checkpoint.folder.rstrip("/") == versions.home_of(source))
    if not (own or replace_others) and versions.newest(checkpoint.folder) is not None:
        raise CheckpointExistsError(checkpoint.folder)
    resumed = None if source is None else versions.read(source)
    return CheckpointSession(CheckpointWriter(checkpoint, resumed), resumed)


def _read_fits(version: Version) -> FinishedFits:
    sums, points = _under("score", version.arrays), _under("point", version.arrays)
    keys = map(_from_json, version.header["fits"])
    scores = {key: {name: values[i] for name, values in sums.items()} for i, key in enumerate(keys)}
    kept = map(_from_json, version.header["points"])
    kept_points = {key: StartPoint(points["W"][i], points["common"][i]) for i, key in enumerate(kept)}
    ends = {}
    for fold in version.header["ends"]:
        end = _under(f"end-{fold}", version.arrays)
        ends[int(fold)] = PathEnd(StartPoint(end["W"], end["common"]), float(end["step"]))
    return FinishedFits(version.header["grid"] or {}, scores, ends, kept_points)


def _to_json(key: FitKey) -> dict[str, Any]:
    return {**asdict(key.strengths), "fold": key.fold}


def _from_json(fields: Mapping[str, Any]) -> FitKey:
    return FitKey(Strengths(**{name: value for name, value in fields.items() if name != "fold"}), int(fields["fold"]))


def require_same_run(version: Version, name: str, problem: Mapping[str, Any]) -> None:
    """Refuse a version of another run."""
    header = version.header
    require_same(version.folder, {"run": name, **problem}, {"run": header["run"], **header["problem"]})


def _under(prefix: str, arrays: Arrays) -> Arrays:
    start = f"{prefix}."
    return {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}
