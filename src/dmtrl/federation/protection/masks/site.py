"""A site in a study with masked sums: it computes its own weights, and only sums over all sites become known.

Its state is on its disk after every question, with the answer, so that a repeated question gets the same bytes and a
mask is never used for two sums.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl import storage
from dmtrl.data.blocks import Blocks
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.masks.masking import KEY_BYTES, masked, new_key, public_part
from dmtrl.federation.site.rows import ask_worker, first_request
from dmtrl.federation.study.preparation import are_finite
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.rounds import Prepared, Restore, Round, Save
from dmtrl.protocol.steps import Steps
from dmtrl.protocol.study import Masked, SharedKey, ShareKey, SumUp
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker

_KEY, _STATE, _KIND = "key.json", "state.npz", "dmtrl masked sums 1"


class MaskedSite:
    """The part of one site in masked sums. Use it while holding the lock of the ledger.

    statistics: returns the site's numbers for a question about the preparation. blocks, ridge: the rows of the prepared
    problem, and the penalty on an intercept in it.
    """

    def __init__(
        self,
        folder: Path,
        study: Study,
        statistics: Callable[[SumUp], np.ndarray],
        blocks: Callable[[], Blocks],
        ridge: Callable[[], float],
    ):
        self._folder, self._study, self._statistics = folder, study, statistics
        self._blocks, self._ridge = blocks, ridge
        self._worker: Worker | None = None
        self._at = ""  # the folder of the worker's file for the current question

    def share_key(self, request: ShareKey) -> SharedKey:
        """A new key for a new session; the same one for the same session."""
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

    def answer(self, request: SumUp) -> Masked:
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

    def weights(self) -> np.ndarray:
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
        blocks = self._blocks()
        self._worker = Worker(blocks, self._study.loss)
        prepared = self._prepare(self._worker, blocks)
        state |= {"Z": np.zeros_like(prepared.b), "B": prepared.b}
        self._save(self._worker)
        longest = np.minimum(prepared.longest_step, 1e12).sum()
        return np.array([blocks.n_units, prepared.conjugate.sum(), prepared.conjugate_at_zero.sum(), longest])

    def _prepare(self, worker: Worker, blocks: Blocks, first_step: float = np.inf) -> Prepared:
        settings = Settings(seed=self._study.fit.seed)
        prepared: Prepared = ask_worker(worker, first_request(blocks, settings, self._ridge(), first_step))
        return prepared

    def _improve(self, request: SumUp, state: dict[str, np.ndarray], worker: Worker) -> np.ndarray:
        """One round of the worker at Z. Sums of losses and squares, and Gram matrices of V = U + s B and of B."""
        self._require("Z" in state and are_finite(request.numbers, (4,)))
        number, s, target, relax = request.numbers.tolist()
        self._require(s > 0 and relax in (0.0, Settings().relaxation - 1.0) and number >= 0)
        if number == 0:  # the first step size depends on the number of tasks, which no site knew at the start
            intercept_step = self._prepare(worker, self._blocks(), s).intercept_step
            assert intercept_step is not None
            state["intercept_step"] = intercept_step
        Z, before = state["Z"], state["B"]
        step, intercept_step = np.full(len(Z), s), state["intercept_step"]
        answer = ask_worker(
            worker,
            Round(round=int(number), target=target, relax=relax, w=Z, step=step, intercept_step=intercept_step),
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
            self._worker = Worker(self._blocks(), self._study.loss)
            ask_worker(self._worker, Restore(source=str(self._folder / worker)))
        return self._worker

    def _save(self, worker: Worker) -> None:
        ask_worker(worker, Save(to=str(self._folder / self._at)))

    def _require(self, fits: bool) -> None:
        if not fits:
            raise RefusedBySiteError("the coordinator asked for a masked sum that does not fit the study")


def _square(values: np.ndarray) -> float:
    return float((values * values).sum())


def _gram(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The upper triangle of the Gram matrix of the columns, and the sum of the rows."""
    return (rows.T @ rows)[np.triu_indices(rows.shape[1])], rows.sum(axis=0)
