"""A site in a study with masked sums: it computes its own weights, and only sums over all sites become known.

Its state is on its disk after every question, with the answer, so that a repeated question gets the same bytes and a
mask is never used for two sums.
"""

import json
import shutil
from typing import Any

import numpy as np

from dmtrl import storage
from dmtrl.data.blocks import Blocks
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.base import SiteHalf, SiteSide
from dmtrl.federation.protection.masks.masking import KEY_BYTES, masked, new_key, public_part
from dmtrl.federation.protection.masks.questions import request_of
from dmtrl.federation.protection.worker import first_request
from dmtrl.federation.study.models import intercept_ridge
from dmtrl.federation.study.preparation import are_finite
from dmtrl.protocol.rounds import Prepared, Restore, Round, Save
from dmtrl.protocol.steps import Steps
from dmtrl.protocol.study import Masked, Publish, Published, SharedKey, ShareKey, SumUp
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker

_KEY, _STATE, _KIND = "key.json", "state.npz", "dmtrl masked sums 1"


class MasksSite(SiteHalf):
    """The part of one site in masked sums. Its handlers hold the lock of the site: two processes must not use the masks
    of one sum for different numbers."""

    def __init__(self, side: SiteSide):
        self._side, self._study, self._folder = side, side.study, side.folder / "masked"
        self._worker: Worker | None = None
        self._at = ""  # the folder of the worker's file for the current question
        self.handlers = {ShareKey: self.share_key, SumUp: self.sum_up, Publish: self.publish}

    def withheld(self, request: str) -> str:
        return f"the study has masked sums: the answer to {request!r} would show numbers of this site alone"

    def told_rows(self, rows: np.ndarray) -> np.ndarray:
        """Whether a task takes part: at most the threshold of the study."""
        return np.minimum(rows, self._study.limits.rows_per_task)

    def own_weights(self) -> np.ndarray | None:
        return self._weights() if self._study.results.sites == "own" else None

    def publish(self, request: Publish) -> Published:
        if self._study.results.coordinator != "weights":
            raise RefusedBySiteError("the study does not give weights to the coordinator")
        return Published(weights=self._weights())

    def share_key(self, request: ShareKey) -> SharedKey:
        """A new key for a new session; the same one for the same session."""
        with self._side.locked():
            return self._share_key(request)

    def sum_up(self, request: SumUp) -> Masked:
        """The part of this site in a masked sum."""
        with self._side.locked():
            return self._answer(request)

    def _statistics(self, request: SumUp) -> np.ndarray:
        """The numbers of this site for a sum about the preparation."""
        if request.question == "rows":
            return np.array([float(self._side.rows())])
        answer = self._side.statistics(request_of(request))
        # in the order of the fields, which the coordinator expects (questions.split_counts, MaskedSums.ask_all)
        return np.concatenate([np.ravel(values) for values in vars(answer).values()])

    def _ridge(self) -> float:
        """The penalty on an intercept in the prepared problem."""
        return intercept_ridge(self._study, self._side.coordinates())

    def _share_key(self, request: ShareKey) -> SharedKey:
        key = self._key_of(request.session)
        if key is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            key = new_key()
            stored = {"session": request.session, "key": key.hex()}
            storage.write(str(self._folder / _KEY), json.dumps(stored).encode())
            self._worker = None
        return SharedKey(key=public_part(key))

    def _key_of(self, session: str) -> bytes | None:
        """The private key for a session; None if it is not the session that began last."""
        path = self._folder / _KEY
        stored = json.loads(path.read_bytes()) if path.exists() else {}
        return bytes.fromhex(stored["key"]) if stored.get("session") == session else None

    def _answer(self, request: SumUp) -> Masked:
        key, header, state = self._load(request)
        if request.counter == header["counter"]:
            return Masked(counter=request.counter, values=state["answer"])
        if request.counter != header["counter"] + 1:
            raise RefusedBySiteError("the coordinator asked for a masked sum out of turn")
        self._at = f"worker-{request.counter}"
        numbers = self._numbers(request, state, header.get("worker", ""))
        label = f"{request.session} {request.counter}"
        values = masked(numbers, key, state["keys"], label, self._study.limits.sites)
        state["answer"] = values
        header["counter"] = request.counter
        if (self._folder / self._at).exists():
            header["worker"] = self._at
        storage.save(str(self._folder / _STATE), {"kind": _KIND, **header}, state)
        for old in self._folder.glob("worker-*"):
            if old.name != header.get("worker"):
                shutil.rmtree(old, ignore_errors=True)
        return Masked(counter=request.counter, values=values)

    def _weights(self) -> np.ndarray:
        """The weights that the coordinator's certificate is about."""
        path = self._folder / _STATE
        if not path.exists():
            raise RefusedBySiteError("no masked study has run here")
        _, state = storage.load(str(path), _KIND)
        if "best" not in state:
            raise RefusedBySiteError("the masked study has not come to a result here")
        return np.array(state["best"])

    def _load(self, request: SumUp) -> tuple[bytes, dict[str, Any], dict[str, np.ndarray]]:
        key = self._key_of(request.session)
        if key is None:
            raise RefusedBySiteError("the coordinator asked for a masked sum of a session that has not begun here")
        keys = request.keys
        if keys.ndim != 2 or keys.shape[1] != KEY_BYTES or keys.dtype != np.uint8:
            raise RefusedBySiteError("the coordinator sent something other than keys")
        header: dict[str, Any] = {"counter": -1}
        state: dict[str, np.ndarray] = {"keys": keys}
        if (self._folder / _STATE).exists():
            header, arrays = storage.load(str(self._folder / _STATE), _KIND)
            header, state = dict(header), dict(arrays)
            if not np.array_equal(state["keys"], keys):
                raise RefusedBySiteError("the coordinator sent other keys than before in the same session")
        return key, header, state

    def _numbers(self, request: SumUp, state: dict[str, np.ndarray], worker: str) -> np.ndarray:
        """The numbers of this site for a question; the state is updated."""
        if request.question == "start":
            return self._start(state)
        if request.question == "improve":
            return self._improve(request, state, self._restored(worker))
        if request.question == "move":
            return self._move(request, state)
        return self._statistics(request)

    def _start(self, state: dict[str, np.ndarray]) -> np.ndarray:
        blocks = self._side.blocks()
        self._worker = Worker(blocks, self._study.loss)
        prepared = self._prepare(self._worker, blocks)
        state |= {"Z": np.zeros_like(prepared.b), "B": prepared.b}
        self._save(self._worker)
        longest = np.minimum(prepared.longest_step, 1e12).sum()
        return np.array([blocks.n_units, prepared.conjugate.sum(), prepared.conjugate_at_zero.sum(), longest])

    def _prepare(self, worker: Worker, blocks: Blocks, first_step: float = np.inf) -> Prepared:
        settings = Settings(seed=self._study.fit.seed)
        prepared: Prepared = worker.handle(first_request(blocks, settings, self._ridge(), first_step))
        return prepared

    def _improve(self, request: SumUp, state: dict[str, np.ndarray], worker: Worker) -> np.ndarray:
        """One round of the worker at Z. Sums of losses and squares, and Gram matrices of V = U + s B and of B."""
        self._require("Z" in state and are_finite(request.numbers, (4,)))
        number, s, target, relax = request.numbers.tolist()
        self._require(s > 0 and relax in (0.0, Settings().relaxation - 1.0) and number >= 0)
        if number == 0:  # the first step size depends on the number of tasks, which no site knew at the start
            intercept_step = self._prepare(worker, self._side.blocks(), s).intercept_step
            assert intercept_step is not None
            state["intercept_step"] = intercept_step
        Z, before = state["Z"], state["B"]
        step, intercept_step = np.full(len(Z), s), state["intercept_step"]
        answer = worker.handle(
            Round(round=int(number), target=target, relax=relax, w=Z, step=step, intercept_step=intercept_step)
        )
        steps = Steps(step, intercept_step, np.full(len(Z), self._ridge()))
        anchor = Z if relax == 0.0 else Z + relax * (Z - state["U"])
        U, B = steps.centre(Z, anchor, before) + steps.times(answer.b), answer.b
        state |= {"U": U, "B": B, "V": U[:, :-1] + s * B[:, :-1]}
        self._save(worker)
        inner = [answer.loss_w.sum(), answer.conjugate.sum(), _square(Z[:, -1]), _square(B[:, -1])]
        inner += [_square(part[:, :-1]) for part in (B, B - before, U)]
        return np.concatenate([inner, *_gram(state["V"]), *_gram(B[:, :-1])])

    def _move(self, request: SumUp, state: dict[str, np.ndarray]) -> np.ndarray:
        """The proximal point Z = w_0 + (V - w_0) M of the own tasks; the one before is kept if it was the best."""
        self._require("V" in state)
        d = state["V"].shape[1]
        self._require(are_finite(request.numbers, (1 + d + d * d,)))
        keep, w0, M = request.numbers[0], request.numbers[1 : 1 + d], request.numbers[1 + d :].reshape(d, d)
        if keep:
            state["best"] = state["Z"]
        new = np.column_stack([w0 + (state["V"] - w0) @ M, state["U"][:, -1]])
        moved = _square(new[:, :-1] - state["Z"][:, :-1])
        state["Z"] = new
        return np.array([moved, _square(new[:, :-1]), _square(new[:, :-1] - state["U"][:, :-1])])

    def _restored(self, worker: str) -> Worker:
        """The worker of the run, from the disk after a restart."""
        if self._worker is None:
            self._require(bool(worker))
            self._worker = Worker(self._side.blocks(), self._study.loss)
            self._worker.handle(Restore(source=str(self._folder / worker)))
        return self._worker

    def _save(self, worker: Worker) -> None:
        worker.handle(Save(to=str(self._folder / self._at)))

    def _require(self, fits: bool) -> None:
        if not fits:
            raise RefusedBySiteError("the coordinator asked for a masked sum that does not fit the study")


def _square(values: np.ndarray) -> float:
    return float((values * values).sum())


def _gram(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The upper triangle of the Gram matrix of the columns, and the sum of the rows."""
    return (rows.T @ rows)[np.triu_indices(rows.shape[1])], rows.sum(axis=0)
