"""A worker: holds blocks and their dual variables, answers messages.

Room: below the coordinator, above relationship. Rows, labels and alpha never leave it; what it sends is B (d
numbers a unit) and sums. Message names: describe, hold_out, prepare, round, catch_up, look, score, save, restore. The
equations cited are those of docs/math.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl import storage
from dmtrl.data.blocks import Blocks, Source
from dmtrl.losses import CLASSIFICATION, AnyLoss, CustomLoss, identity, scalar
from dmtrl.numerics.rowwise import row_blocks
from dmtrl.protocol.message import Message, Scalar
from dmtrl.relationship import Metric
from dmtrl.worker import kernels
from dmtrl.worker import rows as row_access
from dmtrl.worker.input_check import check_blocks
from dmtrl.worker.row_formats import csr_arrays, gram_factors, in_chunks

SOLVER_NAMES = {kernels.SDCA: "sdca", kernels.NEWTON: "newton", kernels.GRAM: "gram"}
_NO_GRAM = kernels.GramFactors(np.zeros((0, 0)), np.zeros((0, 0, 0)), np.zeros((0, 0)))
_EXACT_LIMIT = 512  # features; above it a Newton step is dearer than passes
_FLOAT32_ENOUGH = 1e-5  # local gap
_BLOCK_BYTES = 16384  # of rows that are read together
_WORTH_CHUNKS, _ROWS_ASKED = 0.5, 64  # share of the chunks that are not all zero, asked of so many rows of a unit
_PASSES_ALONG, _PASSES_IN_METRIC = 2, 3  # of a catch-up, without and with a floor: after fewer too little has settled
_ROUNDS_AHEAD = 10  # over how many rounds a factorisation is expected to pay
_SAVED = "dmtrl worker 1"
_FROM_ROUND_TO_ROUND = ("_U", "_W_before", "_B_before", "_calm")  # beside alpha and B, which is made of it; all saved


class Worker:
    """One loss for all tasks, or a sequence with one loss per task of the whole problem."""

    def __init__(self, source: Source, losses: AnyLoss | Sequence[AnyLoss]):
        blocks = source.load()
        self._losses = [losses[t] for t in blocks.tasks] if isinstance(losses, Sequence) else [losses] * blocks.n_units
        self._q, self._chunks = _measured(blocks)
        check_blocks(blocks, self._losses, self._q)
        self._blocks = blocks
        self._kernels = _kernels_for(self._losses)
        self._ids = blocks.tasks.astype(np.uint64) + (blocks.shards.astype(np.uint64) << np.uint64(40))
        self._d = int(blocks.X.shape[1])
        self._held = np.zeros(len(blocks.y), dtype=bool)
        self._alpha = np.zeros(len(blocks.y))
        self._gram: kernels.GramFactors | None = None  # of the rows that train
        self._settings: dict[str, Any] = {}  # nothing until prepared
        self._digest = ""  # of the rows; made when first saved
        self._packed: Any = None  # the rows in chunks; made when first prepared so

    def answer(self, message: Message) -> Message:
        handler = {
            "describe": self._describe,
            "hold_out": self._hold_out,
            "prepare": self._prepare,
            "round": self._round,
            "catch_up": self._catch_up,
            "look": self._look,
            "score": self._score,
            "save": self._save,
            "restore": self._restore,
        }.get(message.name)
        if handler is None:
            raise ValueError(f"a worker was sent a message it does not know: {message.name!r}")
        return handler(message)

    def _describe(self, message: Message) -> Message:
        blocks = self._blocks
        weight = _sum_by_unit(self._weight() * ~self._held, blocks.starts)
        arrays = {"tasks": blocks.tasks, "shards": blocks.shards, "rows": np.diff(blocks.starts), "weight": weight}
        digest = {"digest": self._rows_digest()} if message.scalars.get("digest") else {}
        chunks = dict(zip(("chunks_used", "chunks"), self._chunks, strict=True))
        return Message("described", {"features": self._d, **chunks, **digest}, arrays)

    def _weight(self) -> np.ndarray:
        weight = self._blocks.sample_weight
        return np.ones(len(self._blocks.y)) if weight is None else weight

    def _hold_out(self, message: Message) -> Message:
        """Set aside fold `fold` of `folds` (fold -1: nothing), drawn within each unit and, where labels are classes,
        each class.
        """
        fold, folds = int(message.scalars["fold"]), int(message.scalars["folds"])
        self._held[:] = False
        self._gram = None
        for i in range(self._blocks.n_units if fold >= 0 else 0):
            rows = slice(self._blocks.starts[i], self._blocks.starts[i + 1])
            counts = np.flatnonzero(self._weight()[rows] > 0)
            if len(counts) < 2:  # a single row always trains
                continue
            groups = self._blocks.groups
            number = int(self._ids[i] if groups is None else groups[i])
            order = np.random.default_rng([int(message.scalars["seed"]), number]).permutation(counts)
            if self._losses[i].kind == CLASSIFICATION and groups is None:
                order = order[np.argsort(self._blocks.y[rows][order], kind="stable")]
            self._held[rows.start + order[fold::folds]] = True
        return self._describe(message)

    def _score(self, message: Message) -> Message:
        """Sums over the rows held out: weight, loss, squared error, and how often the sign is wrong."""
        W, blocks = message.arrays["w"], self._blocks
        weight = self._weight() * self._held
        units = self._units._replace(p=weight)
        loss, _, _ = self._losses_at(W, units)
        z = np.empty(len(blocks.y))
        for i in range(blocks.n_units):
            rows = slice(blocks.starts[i], blocks.starts[i + 1])
            z[rows] = blocks.X[rows] @ W[i]
        arrays = {
            "weight": _sum_by_unit(weight, blocks.starts),
            "loss": loss,
            "squared_error": _sum_by_unit(weight * (units.y - z) ** 2, blocks.starts),
            "wrong": _sum_by_unit(weight * (units.y * z <= 0), blocks.starts),
        }
        return Message("scored", {}, arrays)

    def _prepare(self, message: Message) -> Message:
        """Normalise the row weights over whole tasks. Dual variables start at zero, unless they are to be kept, or come
        from weights `w` that were found elsewhere."""
        blocks = self._blocks
        p = np.repeat(1.0 / message.arrays["total_weight"], np.diff(blocks.starts))
        p[self._held] = 0.0
        if blocks.sample_weight is not None:
            p *= blocks.sample_weight
        X = self._rows(float(message.scalars.get("filled", 1.0)))
        q = self._q
        loss = np.array([loss.id for loss in self._losses], dtype=np.int64)
        param = np.array([loss.param for loss in self._losses])
        y = blocks.y.astype(float, copy=False)
        self._units = kernels.Units(X, y, p, q, blocks.starts.astype(np.int64), loss, param)
        self._settings = dict(message.scalars)
        self._steps, self._total_weight = message.arrays["steps"], message.arrays["total_weight"]
        n_units = blocks.n_units
        bounds = np.array([loss.smoothness for loss in self._losses])
        self._smooth = np.isfinite(bounds) & (loss != scalar.CUSTOM)  # Newton needs a slope and a bounded curvature
        self._smoothness = np.where(np.isfinite(bounds), bounds, 1.0)
        self._mean_q = _sum_by_unit(p * q, blocks.starts) / np.maximum(_sum_by_unit(p, blocks.starts), scalar.TINY)
        self._calm = np.zeros(len(blocks.y), dtype=np.uint8)  # how often in a row a row was met calm
        self._block = self._rows_in_block()
        if not message.scalars["keep"]:
            self._alpha = np.zeros(len(blocks.y))
        if "w" in message.arrays and not self._alpha.any():
            kernels.slopes(self._units, np.ascontiguousarray(message.arrays["w"]), self._smooth, self._alpha)
        self._B = np.zeros((n_units, self._d))
        loss_at_zero, at_zero = self._at_zero()
        conjugate = at_zero
        if self._alpha.any():
            kernels.dual_vectors(self._units, self._alpha, self._B)
            conjugate = self._conjugates(self._alpha)
        self._U: np.ndarray | None = None
        self._W_before: np.ndarray | None = None
        self._B_before: np.ndarray | None = None
        arrays = {
            "b": self._B.copy(),
            "conjugate": conjugate,
            "conjugate_at_zero": at_zero,
            "longest_step": self._longest_step(),
        }
        if message.scalars.get("look"):  # at the weights where the run begins
            arrays["loss_w"] = self._losses_at(message.arrays["w"])[0] if "w" in message.arrays else loss_at_zero
        return Message("prepared", {}, arrays)

    def _rows(self, filled: float) -> Any:
        """As the kernels like them. Dense rows that are mostly zeros, as those of pictures are, as their chunks that
        are not; `filled`, of all workers' rows, decides, so that it does not matter who holds which task."""
        if sparse.issparse(self._blocks.X):
            return csr_arrays(self._blocks.X)
        if filled > _WORTH_CHUNKS:
            return self._blocks.X
        if self._packed is None:
            self._packed = in_chunks(self._blocks.X)
        return self._packed

    def _rows_in_block(self) -> np.ndarray:
        """Rows that are visited together: about as many as memory fetches well, but 32 blocks or more in a unit. Zero
        where rows are drawn one by one."""
        rows = np.diff(self._blocks.starts)
        if self._settings["sampling"] == "uniform":
            return np.zeros(len(rows), dtype=np.int64)
        fit = int(np.clip(_BLOCK_BYTES / max(self._numbers_in_row() * self._blocks.X.dtype.itemsize, 1.0), 8, 64))
        return np.clip(rows // 32, 1, fit)

    def _numbers_in_row(self) -> float:
        """That a pass reads, on average."""
        X = self._blocks.X
        if sparse.issparse(X):
            return float(X.nnz / max(X.shape[0], 1))
        return float(self._d if isinstance(self._units.X, np.ndarray) else self._d * self._settings["filled"])

    def _longest_step(self) -> np.ndarray:
        """The step size beyond which a unit's local problem is too stiff: for coordinate ascent, which then hardly
        moves, and for the exact solvers, where s b loses its digits."""
        rows, q = np.diff(self._units.starts), np.maximum(self._mean_q * self._smoothness, scalar.TINY)
        exact = self._smooth & (self._d <= _EXACT_LIMIT)
        return np.where(exact, 1e8, 1e3 * np.maximum(rows, 1)) / q

    def _conjugates(self, alpha: np.ndarray) -> np.ndarray:
        sums = np.zeros(self._blocks.n_units)
        self._kernels.conjugates(self._units, alpha, sums)
        return sums

    def _losses_at(
        self, W: np.ndarray, units: kernels.Units | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, conjugate, bracket = np.zeros((3, len(W)))
        self._kernels.evaluate(units or self._units, self._alpha, np.ascontiguousarray(W), value, conjugate, bracket)
        return value, conjugate, bracket

    def _at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss at no weights and the conjugate at no dual variables, known from the labels: no row is read."""
        rows, n_units, X = len(self._blocks.y), self._blocks.n_units, self._units.X
        if isinstance(X, np.ndarray):
            nothing: Any = np.empty((rows, 0), dtype=X.dtype)
        else:
            values, columns, indptr = X
            nothing = values[:0], columns[:0], np.zeros(rows + 1, dtype=indptr.dtype)
        value, conjugate, bracket = np.zeros((3, n_units))
        units = self._units._replace(X=nothing)
        self._kernels.evaluate(units, np.zeros(rows), np.zeros((n_units, 0)), value, conjugate, bracket)
        return value, conjugate

    def _look(self, message: Message) -> Message:
        """The loss at weights, without a step."""
        return Message("looked", {}, {"loss_w": self._losses_at(message.arrays["w"])[0]})

    def _round(self, message: Message) -> Message:
        """Evaluate at the weights that came, then improve alpha on the local problem (6) centred by them."""
        scalars, W, step = message.scalars, message.arrays["w"], message.arrays["step"]
        eta = float(scalars.get("eta", 1.0))
        alpha_before = self._alpha.copy() if eta < 1 else None
        solver, out = self._solve(message, W, self._centre(scalars, W, step), step)
        if alpha_before is not None:
            self._alpha = alpha_before + eta * (self._alpha - alpha_before)
            kernels.dual_vectors(self._units, self._alpha, self._B)
            out[:, 3] = self._conjugates(self._alpha)
        arrays = {
            "b": self._B.copy(),
            "loss_w": out[:, 0].copy(),
            "bracket_w": out[:, 1].copy(),
            "loss_u": out[:, 2].copy(),
            "conjugate": out[:, 3].copy(),
            "steps": out[:, 4].astype(np.int64),
            "solver": solver.astype(np.int8),
        }
        if "probe" in message.arrays:
            arrays["loss_probe"] = self._losses_at(message.arrays["probe"])[0]
        return Message("improved", {}, arrays)

    def _catch_up(self, message: Message) -> Message:
        """Improve alpha on the local problems (37), in a metric that came, with the loss where that ends if it is known
        without another reading of the rows."""
        metric, out, settings = Metric.from_message(message), np.zeros((len(self._B), 3)), self._settings
        passes = _PASSES_IN_METRIC if metric.floor else _PASSES_ALONG
        self._kernels.catch_up(
            self._units, self._ids, self._alpha, self._B, metric.centre, np.ascontiguousarray(metric.directions.T),
            metric.floor, min(passes, int(settings["max_passes"])), self._block, int(settings["seed"]),
            int(message.scalars["round"]), out,
        )  # fmt: skip
        self._U = metric.weights(self._B)
        arrays: dict[str, np.ndarray] = {
            "b": self._B.copy(),
            "loss_u": out[:, 0].copy(),
            "conjugate": out[:, 1].copy(),
            "steps": out[:, 2].astype(np.int64),
            "solver": np.full(len(self._B), kernels.SDCA, dtype=np.int8),
        }
        return Message("caught_up", {}, arrays)

    def _centre(self, scalars: Mapping[str, Scalar], W: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The centres (17) of the local problems, made where U stood, which is not needed any more."""
        relax, C = float(scalars.get("relax", 0.0)), self._U
        if C is None or relax == 0.0:
            C = W.copy()
        else:
            np.subtract(W, C, out=C)
            C *= relax
            C += W
        B = self._B
        if "momentum" in scalars:  # remember where this round began: the next one extrapolates from here
            momentum, before = float(scalars["momentum"]), self._W_before
            if momentum and before is not None and self._B_before is not None:
                C += momentum * (W - before)
                B = B + momentum * (B - self._B_before)
            self._W_before, self._B_before = W.copy(), self._B.copy()
        for rows in row_blocks(*C.shape):
            C[rows] -= step[rows, None] * B[rows]
        return C

    def _solve(self, message: Message, W: np.ndarray, C: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scalars, settings, n_units = message.scalars, self._settings, len(step)
        rows = np.diff(self._units.starts)
        solver = self._choose(step, float(scalars.get("pace", 1.0)))
        if (solver == kernels.GRAM).any() and self._gram is None:
            self._gram = gram_factors(self._blocks, self._units)
        gram = self._gram or _NO_GRAM
        steps, target = self._amount_of_work(rows, float(scalars["target"]))
        if "most" in message.arrays:  # a limit, or with a given H the number itself
            steps = message.arrays["most"] if target < 0 else np.minimum(steps, message.arrays["most"])
        factor = message.arrays.get("factor", np.zeros((n_units, 0)))
        self._U = np.empty((n_units, self._d))
        out = np.zeros((n_units, 5))
        rough = target < 0 or target > _FLOAT32_ENOUGH  # then float32 rows are improved in float32
        work = np.empty(self._d, dtype=self._blocks.X.dtype if rough else np.float64)
        zero = not (C.any() or self._B.any())  # then u = s b
        self._kernels.local_round(
            self._units, self._ids, self._alpha, self._B, C, self._U, np.ascontiguousarray(W),
            np.ascontiguousarray(step), solver, gram, steps, self._block, np.full(n_units, target),
            int(settings["seed"]), int(scalars["round"]), np.ascontiguousarray(factor),
            float(scalars.get("coupling", 0.0)), bool(scalars.get("look", True)), bool(scalars.get("at_u", False)),
            bool(scalars.get("from_zero", False)) and zero and work.dtype == np.float64, work, self._calm,
            np.zeros_like(self._calm), out,
        )  # fmt: skip
        return solver, out

    def _amount_of_work(self, rows: np.ndarray, target: float) -> tuple[np.ndarray, float]:
        """Steps per unit and the local gap at which a unit may stop early; a negative target means never early."""
        if self._steps.all():
            return np.where(rows > 0, self._steps, 0), -1.0
        uniform = self._settings["sampling"] == "uniform"
        return rows * int(self._settings["max_passes"]), -1.0 if uniform else target

    def _choose(self, step: np.ndarray, pace: float) -> np.ndarray:
        """A local solver for each unit: the one that should reach its target in the fewest operations. `pace` is how
        often this worker answers beside the others, where they do not wait for it: 0 before it ever did, when one pass
        is wanted soon."""
        wanted = self._settings["local_solver"]
        n_units, d = len(step), self._d
        solver = np.full(n_units, kernels.SDCA)
        squared = self._units.loss == scalar.SQUARED
        if wanted != "auto":
            code = next(code for code, name in SOLVER_NAMES.items() if name == wanted)
            able = squared if code == kernels.GRAM else self._smooth
            return np.where(able, code, kernels.SDCA)
        rows = np.maximum(np.diff(self._units.starts), 1)
        per_row = self._numbers_in_row()
        passes = np.minimum(3 * (1 + step * self._mean_q * self._smoothness / rows), int(self._settings["max_passes"]))
        sdca = 4 * rows * per_row * (passes if pace > 0 else 1.0)
        newton = 4 * (rows * per_row**2 + d**3 / 3)
        gram = rows * per_row**2 + 10 * d**3
        # a quarter of the rows' bytes: beside a user's array and the solver's own all stays below 2.5 times the data
        room = (self._blocks.X.data if sparse.issparse(self._blocks.X) else self._blocks.X).nbytes / 4
        gram_fits = 8 * n_units * d * d <= max(room, 8e6)
        if gram_fits and (squared & (gram < max(pace * _ROUNDS_AHEAD, 1.0) * sdca)).any():
            solver[squared] = kernels.GRAM
        return np.where((solver == kernels.SDCA) & self._smooth & (newton < sdca), kernels.NEWTON, solver)

    def _save(self, message: Message) -> Message:
        """Write, into the folder `to`, all that a worker with the same rows needs to answer from here with the same
        bits. What stands in the way is answered and not raised: a run goes on without its checkpoint. An engine that
        brings lost workers back may rely on the folder `last`, in which every worker's file is whole; not yet on `to`.
        """
        where = storage.join(str(message.scalars["to"]), self._file_name())
        header = {"kind": _SAVED, "rows": self._rows_digest(), "settings": self._settings}
        arrays = {"alpha": self._alpha, "held": self._held}
        if self._settings:
            arrays |= {"steps": self._steps, "total_weight": self._total_weight}
            state = {name: getattr(self, name) for name in _FROM_ROUND_TO_ROUND}
            arrays |= {name: value for name, value in state.items() if value is not None}
        try:
            storage.make_folder(str(message.scalars["to"]))
            storage.save(where, header, arrays)
        except OSError as error:
            return Message("saved", {"error": str(error)})
        return Message("saved", {"file": self._file_name()})

    def _restore(self, message: Message) -> Message:
        """Go on from what was saved in the folder `from`. B is made of alpha, never believed."""
        where = storage.join(str(message.scalars["from"]), self._file_name())
        try:
            header, arrays = storage.load(where, _SAVED)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{where} is not there: a checkpoint is read by as many workers as wrote it, all of which must see "
                "its folder; with several machines that is a shared folder or a URL"
            ) from error
        if header["rows"] != self._rows_digest():
            raise ValueError(f"{where} was saved with other rows, labels, weights or losses than those given now")
        self._held, self._alpha, self._gram = arrays["held"], arrays["alpha"], None
        self._settings = header["settings"]
        if not self._settings:
            return Message("restored")
        again = {name: arrays[name] for name in ("steps", "total_weight")}
        self._prepare(Message("prepare", self._settings | {"keep": True, "look": False}, again))
        for name in _FROM_ROUND_TO_ROUND:
            setattr(self, name, arrays.get(name))
        return Message("restored", {}, {"b": self._B.copy()})

    def _file_name(self) -> str:
        """By what it holds first, which no other worker holds."""
        return f"worker-{self._blocks.tasks[0]}-{self._blocks.shards[0]}.npz"

    def _rows_digest(self) -> str:
        if not self._digest:
            X, blocks = self._blocks.X, self._blocks
            parts = [X.data, X.indices, X.indptr] if sparse.issparse(X) else [X]
            parts += [blocks.y, self._weight(), blocks.starts, blocks.tasks, blocks.shards]
            kinds = {loss: k for k, loss in enumerate(dict.fromkeys(self._losses))}
            parts.append(np.array([kinds[loss] for loss in self._losses]))
            self._digest = storage.digest(*parts, words=repr([identity(loss) for loss in kinds]))
        return self._digest


def _measured(blocks: Blocks) -> tuple[np.ndarray, tuple[int, int]]:
    """What every run asks of the rows: |x|^2 of each, and how many chunks of some are not all zero, of how many."""
    X, q = blocks.X, np.empty(len(blocks.y))
    if sparse.issparse(X):
        kernels.squared_norms(csr_arrays(X), q)
        return q, (0, 0)
    kernels.squared_norms(X, q)
    wide = X.shape[1] >= 4 * row_access.CHUNK
    return q, row_access.chunks_in_use(X, blocks.starts, _ROWS_ASKED) if wide else (0, 0)


def _sum_by_unit(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Each unit's own sum, so that it does not depend on its neighbours; a unit may be empty."""
    sums = np.empty(len(starts) - 1)
    kernels.sums_by_unit(values, starts, sums)
    return sums


def _kernels_for(losses: Sequence[AnyLoss]) -> Any:
    own = {loss for loss in losses if isinstance(loss, CustomLoss)}
    if not own:
        return kernels
    if len(own) > 1:
        names = ", ".join(sorted(loss.name for loss in own))
        raise ValueError(f"one problem may use one custom loss beside the built-in ones, got {names}")
    loss = own.pop()
    return kernels.compiled_for(loss.value, loss.conjugate, loss.step)
