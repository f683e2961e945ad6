"""A worker: holds the rows of its units and their dual variables, and answers the coordinator's requests.

Rows, labels and dual variables never leave it. It sends the dual vectors b (d numbers per unit) and sums; the fields of
every message are declared in protocol/rounds.py.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl import storage
from dmtrl.data.blocks import Blocks, Source
from dmtrl.data.folds import TEST, TRAIN, shuffled
from dmtrl.losses import CLASSIFICATION, AnyLoss, OneVsRest, Softmax, identity
from dmtrl.protocol.codec import decode, encode, name_of
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import (
    Describe,
    Description,
    HoldOut,
    Improved,
    Moments,
    Prepare,
    Prepared,
    Restore,
    Restored,
    Round,
    Save,
    Saved,
    Score,
    Scores,
    SharedUsed,
    SumMoments,
    UseShared,
)
from dmtrl.worker.input_check import check_blocks
from dmtrl.worker.local_problem import LocalProblem
from dmtrl.worker.local_rows import LocalRows, sum_by_unit
from dmtrl.worker.one_vs_rest import OneVsRestProblem, OneVsRestRows
from dmtrl.worker.rounds import DualState, RoundProblem
from dmtrl.worker.softmax import SoftmaxProblem
from dmtrl.worker.sums import shared_scores, sum_moments

_FILE_KIND = "dmtrl worker 5"
_KEPT = ("total_weight", "steps", "task_weight", "intercept_ridge")  # arrays of `Prepare` that a file holds

UnitProblem = RoundProblem | OneVsRestProblem  # Worker calls the same methods of both


def hold_rows(blocks: Blocks, losses: Sequence[AnyLoss]) -> LocalRows:
    """The rows of a worker, as its losses need them."""
    if len({(loss.outputs, isinstance(loss, Softmax)) for loss in losses}) > 1:
        raise ValueError("all tasks must have the same number of classes, and all the softmax loss or none")
    outputs = losses[0].outputs if losses else 1
    if blocks.offset is not None and blocks.offset.shape[1:] != ((outputs,) if outputs > 1 else ()):
        wanted = f"(n, {outputs})" if outputs > 1 else "(n,)"
        raise ValueError(f"offset has shape {blocks.offset.shape}; this loss needs one of shape {wanted}")
    if losses and isinstance(losses[0], OneVsRest):
        return OneVsRestRows(blocks, [loss for loss in losses if isinstance(loss, OneVsRest)])
    return LocalRows(blocks, losses)


def begin_problem(rows: LocalRows, held: np.ndarray, order: Prepare, gram: Any = None) -> UnitProblem:
    """The local problems of one run. `held` marks the rows that are held out; `gram` comes from an earlier run."""
    if isinstance(rows, OneVsRestRows):
        return OneVsRestProblem(rows, held, order, gram)
    if rows.losses and isinstance(rows.losses[0], Softmax):
        return SoftmaxProblem(rows, held, order)
    return LocalProblem(rows, held, order, gram)


class Worker:
    """`losses`: one loss for all tasks, or a sequence with one loss per task of the whole problem."""

    def __init__(self, source: Source, losses: AnyLoss | Sequence[AnyLoss]):
        blocks = source.load()
        own = [losses[t] for t in blocks.tasks] if isinstance(losses, Sequence) else [losses] * blocks.n_units
        self._rows: LocalRows = hold_rows(blocks, own)
        check_blocks(blocks, own, self._rows.q)
        self._blocks, self._losses = blocks, own  # as given: what `UseShared` changes is in `_rows`
        self._shared: np.ndarray | None = None  # whose score is part of the offsets
        self._held = np.zeros(len(blocks.y), dtype=bool)  # rows that do not train
        self._tested = np.zeros(len(blocks.y), dtype=bool)  # rows that are scored
        self._order: Prepare | None = None
        self._problem: UnitProblem | None = None  # of the current run
        self._state: DualState | None = None
        self._digest = ""  # of the rows; computed when first needed
        self._number: int | None = None  # of a sibling

    def sibling(self, number: int) -> "Worker":
        """A worker on the same rows, which are not copied, that holds out rows and keeps dual variables and a shared
        part of its own. The two may work at the same time. `number` is part of the name of its checkpoint files."""
        other = copy(self)
        other._held, other._tested, other._number = np.zeros_like(self._held), np.zeros_like(self._held), number
        other._order = other._problem = other._state = None
        return other

    def answer(self, message: Message) -> Message:
        return encode(self.handle(decode(message)))

    def handle(self, request: Any) -> Any:
        """The answer to a request, both as the dataclasses that declare them."""
        handler = _HANDLERS.get(type(request))
        if handler is None:
            raise ValueError(f"a worker cannot be sent {name_of(type(request))!r}")
        return handler(self, request)

    def _describe(self, request: Describe) -> Description:
        blocks, rows = self._blocks, self._rows
        return Description(
            features=int(blocks.X.shape[1]),
            chunks=int(rows.chunks),
            chunks_used=int(rows.chunks_used),
            outputs=int(self._losses[0].outputs) if self._losses else 1,
            digest=self._rows_digest() if request.digest else None,
            tasks=blocks.tasks,
            shards=blocks.shards,
            rows=np.diff(blocks.starts),
            weight=sum_by_unit(self._weight() * ~self._held, blocks.starts),
        )

    def _weight(self) -> np.ndarray:
        weight = self._blocks.sample_weight
        return np.ones(len(self._blocks.y)) if weight is None else weight

    def _hold_out(self, request: HoldOut) -> Description:
        """Splits that came with the rows are used as they are. Else folds are drawn within each unit and, where labels
        are classes, within each class."""
        blocks = self._blocks
        self._held, self._tested = np.zeros_like(self._held), np.zeros_like(self._held)
        self._problem = self._state = None
        if request.fold >= 0 and blocks.splits is not None:
            role = blocks.splits[request.fold]
            self._held, self._tested = role != TRAIN, role == TEST
        elif request.fold >= 0:
            for i in range(blocks.n_units):
                rows = slice(blocks.starts[i], blocks.starts[i + 1])
                number = int(blocks.tasks[i]) + (int(blocks.shards[i]) << 40)
                classes = self._losses[i].kind == CLASSIFICATION
                weighted = np.flatnonzero(self._weight()[rows] > 0)
                order = shuffled(weighted, blocks.y[rows] if classes else None, int(request.seed), number)
                self._held[rows.start + order[request.fold :: request.folds]] = True
            self._tested = self._held.copy()
        return self._describe(Describe())

    def _score(self, request: Score) -> Scores:
        problem, _ = self._run()
        return problem.held_out(request.w, self._weight() * self._tested)

    def _sum_moments(self, request: SumMoments) -> Moments:
        return sum_moments(self._blocks, self._losses, self._weight() * ~self._held, request)

    def _use_shared(self, request: UseShared) -> SharedUsed:
        self._set_shared(request.shared)
        self._problem = self._state = None
        return SharedUsed()

    def _set_shared(self, shared: np.ndarray | None) -> None:
        given = self._blocks.offset
        self._shared = shared
        if shared is None:
            self._rows = self._rows.with_offset(given)
            return
        scores = shared_scores(self._blocks, shared)
        scores = scores[:, 0] if scores.shape[1] == 1 else scores
        self._rows = self._rows.with_offset(scores if given is None else scores + given)

    def _prepare(self, request: Prepare) -> Prepared:
        alpha = self._state.alpha if request.keep and self._state is not None else None
        problem, state = self._begin(request, alpha)
        loss_at_zero, at_zero = problem.at_zero()
        loss_w = None
        if request.evaluate:
            loss_w = loss_at_zero if request.w is None else problem.losses_at(request.w, state.alpha)
        return Prepared(
            b=problem.dual_vectors(state),
            conjugate=problem.conjugates(state.alpha) if state.alpha.any() else at_zero,
            conjugate_at_zero=at_zero,
            longest_step=problem.longest_step(),
            intercept_step=problem.intercept_step(),
            loss_w=loss_w,
        )

    def _begin(self, request: Prepare, alpha: np.ndarray | None) -> tuple[UnitProblem, DualState]:
        before, self._order = self._order, request
        same = before is not None and np.array_equal(before.task_weight, request.task_weight)  # type: ignore[arg-type]
        gram = self._problem.gram if self._problem is not None and same else None
        self._problem = begin_problem(self._rows, self._held, request, gram)
        self._state = self._problem.begin(alpha)
        return self._problem, self._state

    def _run(self) -> tuple[UnitProblem, DualState]:
        if self._problem is None or self._state is None:
            raise ValueError("a worker must be sent 'prepare' before rounds and scores")
        return self._problem, self._state

    def _round(self, request: Round) -> Improved:
        problem, state = self._run()
        return problem.improve(state, request)

    def _save(self, request: Save) -> Saved:
        """Write all that a worker with the same rows needs to continue with the same bits.

        A full disk is answered, not raised: the run continues without this checkpoint.
        """
        where = storage.join(request.to, self._file_name())
        header: dict[str, Any] = {"kind": _FILE_KIND, "rows": self._rows_digest(), "order": None}
        arrays = {"held": self._held, "tested": self._tested}
        if self._shared is not None:
            arrays["shared"] = self._shared
        if self._order is not None and self._state is not None:
            order = encode(self._order)
            header["order"] = dict(order.scalars)
            arrays |= {f"order.{name}": order.arrays[name] for name in _KEPT if name in order.arrays}
            state = {"alpha": self._state.alpha, "calm": self._state.calm, "U": self._state.U}
            arrays |= {f"state.{name}": value for name, value in state.items() if value is not None}
        try:
            storage.make_folder(request.to)
            storage.save(where, header, arrays)
        except OSError as error:
            return Saved(error=str(error))
        return Saved(file=self._file_name())

    def _restore(self, request: Restore) -> Restored:
        """Continue from a saved file. B is recomputed from the dual variables."""
        where = storage.join(request.source, self._file_name())
        try:
            header, arrays = storage.load(where, _FILE_KIND)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{where} does not exist: resume with as many workers as wrote the checkpoint, all of which must see "
                "its folder; with several machines use a shared folder or a URL"
            ) from error
        if header["rows"] != self._rows_digest():
            raise ValueError(
                f"{where} was saved with other rows, labels, weights, offsets or losses than those given now"
            )
        self._held, self._tested = arrays["held"], arrays["tested"]
        self._set_shared(arrays.get("shared"))
        self._problem = self._order = self._state = None
        if header["order"] is None:
            return Restored()
        scalars = header["order"] | {"keep": True, "evaluate": False}
        kept: dict[str, Any] = {name: arrays[f"order.{name}"] for name in _KEPT if f"order.{name}" in arrays}
        prepare = Prepare(**scalars, **kept)
        problem, state = self._begin(prepare, arrays["state.alpha"])
        state.calm, state.U = arrays["state.calm"], arrays.get("state.U")
        return Restored(b=problem.dual_vectors(state))

    def _file_name(self) -> str:
        """Named after its first unit, which only its siblings hold too, and after its number among them."""
        number = "" if self._number is None else f"-{self._number}"
        return f"worker-{self._blocks.tasks[0]}-{self._blocks.shards[0]}{number}.npz"

    def _rows_digest(self) -> str:
        if not self._digest:
            X, blocks, losses = self._blocks.X, self._blocks, self._losses
            parts = [X.data, X.indices, X.indptr] if sparse.issparse(X) else [X]
            parts += [blocks.y, self._weight(), blocks.starts, blocks.tasks, blocks.shards]
            kinds = {loss: k for k, loss in enumerate(dict.fromkeys(losses))}
            parts.append(np.array([kinds[loss] for loss in losses]))
            if blocks.offset is not None:
                parts.append(blocks.offset)
            self._digest = storage.digest(*parts, words=repr([identity(loss) for loss in kinds]))
        return self._digest


_HANDLERS: dict[type, Callable[[Worker, Any], Any]] = {
    Describe: Worker._describe,
    HoldOut: Worker._hold_out,
    Prepare: Worker._prepare,
    Round: Worker._round,
    Score: Worker._score,
    SumMoments: Worker._sum_moments,
    UseShared: Worker._use_shared,
    Save: Worker._save,
    Restore: Worker._restore,
}
