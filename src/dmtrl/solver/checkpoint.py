"""Checkpoints: where a run stands, kept in a folder or behind a URL, so that it can go on with the same bits.

Room: beside the methods, below the coordinator. `<path>/version-000007-1f3c9a02/` holds a file of each worker, written
by the worker itself at its own place, one of the coordinator, and a manifest that is written last: a version without
one does not count. The second part of the name is the run's own: two that begin at once in one folder do not mix their
files. The last two versions stay. What is saved is a whole position: the cross-validation fits that are done, and the
run that was under way, at the end of a round.
"""

import contextlib
import json
import os
import re
import secrets
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from dmtrl import storage
from dmtrl.engines.base import Engine
from dmtrl.exceptions import CheckpointWarning
from dmtrl.numerics.checks import is_number, is_whole
from dmtrl.protocol.message import Message
from dmtrl.relationship import Fixed, FreeIntercept, Learned, Relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.layout import Layout
from dmtrl.solver.methods.base import Start
from dmtrl.solver.settings import Settings

FORMAT = 2
FIT = "fit"  # the run on all rows; others are cells of a cross-validation
_KIND = "dmtrl checkpoint"
_STATE, _MANIFEST = "coordinator.npz", "manifest.json"
_VERSION = re.compile(r"version-([0-9]{6,})(-[0-9a-f]{8})?")  # at first there was no second part
_ITS_FILES = re.compile(r"coordinator\.npz|manifest\.json|worker-[0-9]+-[0-9]+\.npz|\..*")
_WHEN_TO_STOP = {"tol", "max_rounds", "omega_steps"}
_SECONDS = 60.0  # between checkpoints when nothing is said
Place = str | os.PathLike[str]
Cell = tuple[float, float, int]  # tau, lambda, fold
State = dict[str, np.ndarray]


@dataclass(frozen=True)
class Checkpoint:
    """Write checkpoints every so many rounds or seconds, whichever comes first; by default every minute.

    Parameters
    ----------
    path : str or path-like
        A folder or fsspec URL. Workers write there too: with several machines it must be one that all can reach.
    every_rounds : int, default=None
        Number of rounds between checkpoints.
    every_seconds : float, default=None
        Seconds between checkpoints.
    """

    path: Place
    every_rounds: int | None = None
    every_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_place("the path of a checkpoint", self.path)
        rounds, seconds = self.every_rounds, self.every_seconds
        if rounds is not None and not (is_whole(rounds) and rounds > 0):
            raise ValueError(f"every_rounds must be positive and a whole number, got {rounds!r}")
        if seconds is not None and not (is_number(seconds) and seconds > 0):
            raise ValueError(f"every_seconds must be positive, got {seconds!r}")

    @property
    def folder(self) -> str:
        return _absolute(self.path)


def _check_place(what: str, path: object) -> None:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not (isinstance(text, str) and text):
        raise ValueError(f"{what} must be a folder or URL, as text or a Path; got {path!r}")


def _absolute(path: Place) -> str:
    """As every worker can use it, whatever folder it runs in."""
    path = os.fspath(path)
    return path if storage.is_url(path) else os.path.abspath(path)


@dataclass(frozen=True)
class _Version:
    """One that was read: the run under way (None between two cells) with its state, and the problem it is of."""

    folder: str
    run: str | None
    problem: dict[str, Any]
    state: State


class Keeper:
    """Writes a run down while it goes on, and knows where to go on from. Without a checkpoint it writes nothing.

    scores: the held-out sums of each finished cross-validation fit, by task. end: where the last of them ended and its
    path goes on. grid: what that cross-validation tries.
    """

    def __init__(self, checkpoint: Checkpoint | None = None, resume: Place | None = None):
        self.scores: dict[Cell, dict[str, np.ndarray]] = {}
        self.end: Start | None = None
        self.grid: dict[str, Any] | None = None
        self.last: str | None = None  # the folder of the last complete version
        self.stop_asked = False  # when set, the next end of a round is kept and raises KeyboardInterrupt
        self.on_score: Callable[[int, int], object] = lambda done, total: None
        self.on_round: Callable[[Any], object] = lambda record: None
        self.saved = False  # whether anything was written
        self._checkpoint, self._warned = checkpoint, False
        self._rounds, self._saved_at = 0, time.monotonic()
        self._loaded: _Version | None = None
        self._mark = secrets.token_hex(4)
        # versions it takes the place of: of the run it goes on from, or complete ones where it begins anew all the same
        self._before: list[str] = []
        if resume is not None:
            self._load(_absolute(resume))
        if checkpoint is not None:
            self._look_at(checkpoint.folder)

    @property
    def place(self) -> Checkpoint | None:
        return self._checkpoint

    @property
    def idle(self) -> bool:
        return self._checkpoint is None and self._loaded is None

    @property
    def writes(self) -> bool:
        return self._checkpoint is not None

    def _look_at(self, folder: str) -> None:
        try:
            storage.check_folder(folder)
            versions = _versions(folder)
        except OSError as error:
            raise OSError(f"checkpoints cannot be kept at {folder}: {error}") from error
        own = _mark_of(self._loaded.folder) if self._loaded is not None else None
        self._before += [one for one in versions if (_is_complete(one) if own is None else _mark_of(one) == own)]
        self._next = 1 + max(map(_number, versions), default=0)

    def _load(self, path: str) -> None:
        folder = newest(path)
        if folder is None:
            raise FileNotFoundError(f"there is no complete checkpoint at {path}; begin anew without resume")
        self._before += [one for one in _versions(path) if _mark_of(one) == _mark_of(folder)]
        self._mark = _mark_of(folder) or self._mark  # the same run, later
        where = storage.join(folder, _STATE)
        try:
            header, arrays = storage.load(where, _KIND)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{where} is not there, so this version cannot be gone on from: name the one before it, if there is one"
            ) from error
        cells = [(float(tau), float(lam), int(fold)) for tau, lam, fold in header["cells"]]
        sums = _under("score", arrays)
        self.scores = {cell: {name: values[i] for name, values in sums.items()} for i, cell in enumerate(cells)}
        self.end = Start(arrays["end.W"], arrays["end.common"]) if "end.W" in arrays else None
        self.grid, self.last = header["grid"], folder
        self._loaded = _Version(folder, header["run"], header["problem"], _under("run", arrays))

    def begin_choosing(self, engine: Engine, grid: Mapping[str, Any]) -> None:
        """Before a cross-validation: refuse another one's checkpoint; if it was stopped between two fits, the workers
        get back what the first of them left behind."""
        if self._loaded is not None:
            _refuse_other(self._loaded.folder, grid, self.grid or {})
            if self._loaded.run is None:
                restore_workers(engine, self._loaded.folder)
                self._loaded = None
        self.grid = dict(grid)

    def begin_run(self, run: str, problem: Mapping[str, Any]) -> tuple[str, State] | None:
        """Where a run goes on: the folder the workers find theirs in, and the coordinator's state; None: from its
        beginning."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return None
        what = "the fit under way"
        _refuse_other(loaded.folder, {what: run, **problem}, {what: loaded.run, **loaded.problem})
        return loaded.folder, loaded.state

    def round_done(
        self, engine: Engine, run: str, problem: Mapping[str, Any], state: Callable[[], State], over: bool
    ) -> None:
        """After every round of a run; `over`: it was the last one."""
        self._rounds += 1
        if over and run != FIT:  # cell_done comes next
            return
        if self.writes and (self.stop_asked or self._due() or over):  # a state may have to be waited for
            self._save(engine, run, problem, state())
        self._stop_if_asked()

    def cell_done(self, engine: Engine, cell: Cell, sums: Mapping[str, np.ndarray], outcome: Any) -> None:
        """After every finished fit of a cross-validation."""
        self.scores[cell] = {name: np.array(values) for name, values in sums.items()}
        self.end = Start(outcome.W, outcome.common)
        if self.stop_asked or self._due():
            self._save(engine, None, {}, {})
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self.stop_asked:
            raise KeyboardInterrupt

    def _due(self) -> bool:
        if self._checkpoint is None:
            return False
        rounds, seconds = self._checkpoint.every_rounds, self._checkpoint.every_seconds
        if rounds is None and seconds is None:
            seconds = _SECONDS
        passed = time.monotonic() - self._saved_at
        return (rounds is not None and self._rounds >= rounds) or (seconds is not None and passed >= seconds)

    def _save(self, engine: Engine, run: str | None, problem: Mapping[str, Any], state: State) -> None:
        if self._checkpoint is None:
            return
        folder = storage.join(self._checkpoint.folder, f"version-{self._next:06d}-{self._mark}")
        # what an engine raises here (a worker stays lost, or cannot read its rows) is no matter of checkpoints
        answers = engine.broadcast(Message("save", {"to": folder, "last": self.last or ""}))
        try:
            self._write(answers, folder, run, problem, state)
        except OSError as error:
            self._warn(error)
            with contextlib.suppress(OSError):
                storage.remove(folder)
            return
        finally:
            self._rounds, self._saved_at = 0, time.monotonic()
        keep = {folder, self.last}  # a worker that is lost now may still be brought back from the one before
        self.last, self._next, self.saved = folder, self._next + 1, True
        with contextlib.suppress(OSError):
            for old in _versions(self._checkpoint.folder):
                if old not in keep and (old.endswith(self._mark) or old in self._before):
                    _remove(old)

    def _write(
        self,
        answers: Mapping[int, Message],
        folder: str,
        run: str | None,
        problem: Mapping[str, Any],
        state: State,
    ) -> None:
        """The coordinator's part, once the workers have answered that theirs is written."""
        errors = [str(answer.scalars["error"]) for answer in answers.values() if "error" in answer.scalars]
        if errors:
            raise OSError(errors[0])
        cells = list(self.scores)
        header = {"kind": _KIND, "run": run, "problem": problem, "grid": self.grid, "cells": cells}
        arrays = {f"run.{name}": values for name, values in state.items()}
        for name in self.scores[cells[0]] if cells else ():
            arrays[f"score.{name}"] = np.array([self.scores[cell][name] for cell in cells])
        if self.end is not None:
            arrays["end.W"], arrays["end.common"] = self.end
        storage.make_folder(folder)  # the workers did, but perhaps elsewhere
        storage.save(storage.join(folder, _STATE), header, arrays)
        files = [_STATE, *sorted(str(answer.scalars["file"]) for answer in answers.values())]
        missing = set(files) - set(storage.names(folder))
        if missing:
            raise OSError(
                f"a worker wrote {sorted(missing)[0]} where the coordinator does not see it; with several machines "
                "the path must be a shared folder or a URL"
            )
        manifest = {"kind": _KIND, "format": FORMAT, "run": run, "cells": len(cells), "files": files}
        storage.write(storage.join(folder, _MANIFEST), json.dumps(manifest, indent=1).encode())

    def clear(self, before: bool = True) -> None:
        """Remove the versions of this run and, unless somebody may yet go on from them, those that lay there before.
        Whatever else lies beside them stays."""
        here = [] if self._checkpoint is None else _versions(self._checkpoint.folder)
        own = [version for version in here if version.endswith(self._mark)]
        for version in own + (self._before if before else []):
            _remove(version)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            kept = f"the last one, {self.last}, stays" if self.last else "there is none yet"
            warnings.warn(
                f"a checkpoint could not be written ({error}); {kept}, and the run goes on",
                CheckpointWarning,
                stacklevel=2,
            )
        self._warned = True


def keeper_for(checkpoint: "Place | Checkpoint | Keeper | None", resume: Place | bool | None) -> Keeper | None:
    """From what people write: resume=True goes on from the checkpoint if there is one; a path has to have one, and
    goes on being kept where nothing else is said."""
    if isinstance(checkpoint, Keeper):
        return checkpoint
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if isinstance(resume, bool) and resume:
        if checkpoint is None:
            raise ValueError("resume=True goes on from the checkpoint; say with checkpoint= where that is")
        return Keeper(checkpoint, checkpoint.path if newest(checkpoint.folder) else None)
    if resume is None or isinstance(resume, bool):
        if checkpoint is not None:
            _refuse_occupied(checkpoint.folder)
        return None if checkpoint is None else Keeper(checkpoint)
    _check_place("resume", resume)
    home = home_of(resume)
    if checkpoint is None:
        checkpoint = Checkpoint(home)
    elif checkpoint.folder.rstrip("/") != home:
        _refuse_occupied(checkpoint.folder)
    return Keeper(checkpoint, resume)


def home_of(path: Place) -> str:
    """The folder in which versions lie, from its own path or that of one of them."""
    path = _absolute(path).rstrip("/")
    return storage.split(path)[0] if _number(path) else path


def _refuse_occupied(folder: str) -> None:
    """A run removes the versions that lay there when it began: those of another run must not be among them."""
    if newest(folder) is not None:
        raise FileExistsError(
            f"{folder} holds the checkpoint of an earlier run; say resume=True to go on from it, or name another folder"
        )


def within(checkpoint: Checkpoint) -> Checkpoint:
    """A folder in that of `checkpoint` that is free, for a run that begins again: what was kept so far stays."""
    places = (storage.join(checkpoint.folder, f"again-{number}") for number in count(1))
    return replace(checkpoint, path=next(place for place in places if newest(place) is None))


def newest(path: str) -> str | None:
    """The folder of the newest complete version at a path, which may itself be a version; None if there is none."""
    for folder in (path, *reversed(_versions(path))):
        if _MANIFEST not in storage.names(folder):
            continue
        where = storage.join(folder, _MANIFEST)
        try:
            manifest = json.loads(storage.read(where))
            number = int(manifest["format"]) if manifest["kind"] == _KIND else 0
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # deleted meanwhile by the run it is of, or cut short where a store does not write whole files
        if number != FORMAT:
            what = "pip install -U dmtrl" if number > FORMAT else "begin anew in another folder"
            raise ValueError(f"{where} has format {number}, and this dmtrl goes on from format {FORMAT} only: {what}")
        return folder
    return None


def problem_of(layout: Layout, relationship: Relationship, lam: float, settings: Settings) -> dict[str, Any]:
    """What a checkpoint must agree about, as far as the coordinator knows it; each worker knows its own rows. When to
    stop may differ: a run that was over can go on with a smaller tol or more rounds."""
    knobs = {name: value for name, value in asdict(settings).items() if name not in _WHEN_TO_STOP}
    return {
        "the number of tasks": layout.m,
        "the number of features": layout.d,
        "the number of workers": len(layout.positions),
        "the partition (rows and weights of each worker)": _digest(
            *layout.positions, layout.task, layout.rows, layout.weight
        ),
        "lambda": lam,
        "the relationship": _relation(relationship),
        **_sample(relationship, layout.m, layout.d),
        **knobs,
    }


def _relation(relationship: Any) -> list[Any]:
    facts = [type(relationship).__name__, relationship.name, relationship.tau, getattr(relationship, "weight", None)]
    facts = [_plain(fact) for fact in facts]
    covariance, base = getattr(relationship, "covariance", None), getattr(relationship, "base", None)
    if isinstance(covariance, TaskCovariance):
        facts.append(_digest(covariance.basis, covariance.values, np.array(covariance.floor)))
    return facts if base is None else [*facts, _relation(base)]


def _plain(fact: Any) -> Any:
    """As JSON can hold it: somebody's own relationship may say it in numpy's numbers, or in anything."""
    if isinstance(fact, np.ndarray | np.generic) and fact.dtype.kind in "biufU":
        return fact.item() if fact.ndim == 0 else _digest(np.asarray(fact))
    if isinstance(fact, list | tuple):
        return [_plain(part) for part in fact]
    return fact if fact is None or isinstance(fact, str | int | float) else type(fact).__name__


def _sample(relationship: Any, m: int, d: int) -> dict[str, Any]:
    """What somebody's own relationship says of fixed weights: two that only share a name differ there. In so few digits
    that another machine's rounding does not."""
    if type(relationship) is FreeIntercept:
        return _sample(relationship.base, m, d - 1)
    if type(relationship) in (Fixed, Learned):
        return {}
    V, common = np.cos(np.arange(m * d, dtype=float)).reshape(m, d), np.zeros(d)
    W = relationship.prox(V.copy(), 1.0, common).W
    said = (relationship.penalty(W, common), relationship.conjugate(V), np.vdot(V, W))
    return {"what the relationship says of sample weights": [f"{round(float(number), 9) + 0.0:.6g}" for number in said]}


def _digest(*arrays: np.ndarray) -> str:
    """Short enough to be shown."""
    return storage.digest(*arrays)[:16]


def restore_workers(engine: Engine, folder: str) -> dict[int, Message]:
    return engine.broadcast(Message("restore", {"from": folder}))


def _refuse_other(folder: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    here = json.loads(json.dumps(here))  # a tuple becomes a list, as it did in the file
    for name in here:
        if here[name] != there.get(name):
            raise ValueError(
                f"{folder} is a checkpoint of another problem or other settings: {name} is {_short(here[name])} here "
                f"and {_short(there.get(name))} there; repeat the call that was stopped, or begin anew without resume"
            )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _number(path: str) -> int:
    """Of a version, by the name of its folder; 0 for any other."""
    found = _VERSION.fullmatch(storage.split(path)[1])
    return int(found[1]) if found else 0


def _mark_of(path: str) -> str:
    """Of the run that wrote a version; empty where versions had none."""
    found = _VERSION.fullmatch(storage.split(path)[1])
    return (found[2] or "").removeprefix("-") if found else ""


def _is_complete(version: str) -> bool:
    return _MANIFEST in storage.names(version)


def _versions(folder: str) -> list[str]:
    """Folders of versions, the newest last."""
    return sorted((storage.join(folder, name) for name in storage.names(folder) if _number(name)), key=_number)


def _remove(version: str) -> None:
    """Unless something lies in it that is not a version's: then somebody else gave a folder such a name."""
    if all(map(_ITS_FILES.fullmatch, storage.names(version))):
        storage.remove(version)


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> State:
    start = f"{prefix}."
    return {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}
