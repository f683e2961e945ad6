"""Every compiled function of the project, in one file (numba's disk cache misses edits made in other files).

Room: the floor of the house. Nothing is imported from dmtrl here. Three parts: the loss table by integer id, row
access for dense, CSR and chunked data through one name each, and the local solvers that a worker runs on its units.
A *unit* is a task's rows, or a shard of them. Symbols and equation numbers follow docs/math.md: alpha dual variables,
p row weights that sum to one over a task, q squared row norms, s the step size, c the centre of the local proximal
problem (6).
"""

import types as python_types
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

HINGE, SMOOTHED_HINGE, SQUARED_HINGE, LOGISTIC, SQUARED, ABSOLUTE = 0, 1, 2, 3, 4, 5
EPSILON_INSENSITIVE, HUBER, QUANTILE, POISSON, CUSTOM = 6, 7, 8, 9, 10

SDCA, NEWTON, GRAM = 0, 1, 2

# Sums may be reordered (SIMD); NaN and infinity keep their meaning, unlike under full fastmath.
FAST = {"reassoc", "contract", "nsz", "arcp"}
TINY = 1e-200
CHUNK = 8  # numbers of a row that are kept or left out together
CALM, LONGEST_REST = 0.1, np.uint8(5)  # a calm row's bracket over the target; a rest is at most 2^5 - 1 passes


class Units(NamedTuple):
    """The rows of a worker's units, one after the other. X is a C-ordered array, CSR's (data, indices, indptr), or the
    same three for chunks of a row: (numbers x CHUNK, first column of each, indptr).
    """

    X: Any
    y: np.ndarray
    p: np.ndarray
    q: np.ndarray
    starts: np.ndarray  # unit i owns rows starts[i]:starts[i+1]
    loss: np.ndarray  # loss id of each unit
    param: np.ndarray  # the loss's one number: gamma, epsilon, delta or the quantile


class GramFactors(NamedTuple):
    """Eigen-decomposition of sum_j p_j x_j x_j^T of each unit and sum_j p_j y_j x_j in its basis (quadratic loss
    only).
    """

    values: np.ndarray
    vectors: np.ndarray
    target: np.ndarray


@njit(cache=True)
def _xlogx(x):  # type: ignore[no-untyped-def]
    return x * np.log(x) if x > 0 else 0.0


@njit(cache=True)
def loss_value(loss, param, z, y):  # type: ignore[no-untyped-def]
    """l(z, y)."""
    if loss == SQUARED:
        return 0.5 * (z - y) * (z - y)
    if loss <= LOGISTIC:
        margin = y * z
        slack = 1.0 - margin
        if loss == LOGISTIC:
            return np.log1p(np.exp(-margin)) if margin > 0 else np.log1p(np.exp(margin)) - margin
        if slack <= 0:
            return 0.0
        if loss == HINGE:
            return slack
        if loss == SQUARED_HINGE:
            return 0.5 * slack * slack
        return slack - 0.5 * param if slack >= param else 0.5 * slack * slack / param
    if loss == POISSON:
        return np.exp(z) - y * z + _xlogx(y) - y  # half the deviance: never negative
    r = y - z
    if loss == QUANTILE:
        return param * r if r >= 0 else (param - 1.0) * r
    r = abs(r)
    if loss == HUBER:
        return 0.5 * r * r if r <= param else param * (r - 0.5 * param)
    return max(r - param, 0.0)  # epsilon-insensitive; absolute is epsilon = 0


@njit(cache=True)
def loss_conjugate(loss, param, a, y):  # type: ignore[no-untyped-def]
    """l*(-a), infinite outside the domain."""
    if loss == SQUARED:
        return 0.5 * a * a - a * y
    if loss <= LOGISTIC:
        t = a * y
        if t < 0 or (t > 1 and loss != SQUARED_HINGE):
            return np.inf
        if loss == LOGISTIC:
            return _xlogx(t) + _xlogx(1.0 - t)
        if loss == SQUARED_HINGE:
            return 0.5 * t * t - t
        return 0.5 * param * t * t - t if loss == SMOOTHED_HINGE else -t
    if loss == POISSON:
        return np.inf if a > y else _xlogx(y - a) - _xlogx(y) + a
    if loss == QUANTILE:
        return np.inf if a > param or a < param - 1.0 else -a * y
    if loss == HUBER:
        return np.inf if abs(a) > param else 0.5 * a * a - a * y
    return np.inf if abs(a) > 1 else param * abs(a) - a * y


@njit(cache=True)
def _logistic_step(t0, margin, sq):  # type: ignore[no-untyped-def]
    """t in [0, 1] with logit(t) + margin + sq (t - t0) = 0, by Newton on the logit v."""
    flipped = margin + sq * (0.5 - t0) < 0
    if flipped:  # solve for 1 - t, so that v <= 0: there the equation is convex in v and Newton cannot cycle
        t0, margin = 1.0 - t0, -margin
    v = min(-margin, 0.0)  # where the row's own margin puts it
    for k in range(30):
        e = np.exp(v)
        t = e / (1.0 + e)
        slope = t * (1.0 - t)
        change = -(v + margin + sq * (t - t0)) / (1.0 + sq * slope)
        if abs(change) <= 1e-4:  # Newton's error is the square of its last step
            t += slope * change * (1.0 + 0.5 * (1.0 - 2.0 * t) * change)
            break
        v += change
        if k == 0 and abs(change) >= 1.0:  # far: with t = exp(v) instead, x = sq t solves x + log(x) = far
            far = sq * t0 - margin + np.log(sq)
            above = max(far, 1.0)
            near = min(far, np.log(above - np.log(above))) - np.log(sq)
            v = min(max(v, near - 1.0), near + 1.0)
        v = min(v, 0.0)
    return 1.0 - t if flipped else t


@njit(cache=True)
def _poisson_step(a0, z, y, sq):  # type: ignore[no-untyped-def]
    """r = y - a > 0 with log(r) - z - sq (y - a0 - r) = 0, by safeguarded Newton on v = log(r); returns a."""
    rest = y - a0
    # x = sq r solves x + log(x) = k. Newton comes down from the right by one a step, so the start has to be near.
    k = z + sq * rest + np.log(sq)
    v = (np.log(k - np.log(k)) if k > 1 else k) - np.log(sq)
    low, high = -745.0, 709.0
    v = min(max(v, low), high)
    for _ in range(100):
        r = np.exp(v)
        g = v - z + sq * (r - rest)
        if g > 0:
            high = v
        else:
            low = v
        new = v - g / (1.0 + sq * r)
        if not (low <= new <= high):
            new = 0.5 * (low + high)
        if abs(new - v) <= 1e-14 * (1.0 + abs(v)):
            v = new
            break
        v = new
    return y - np.exp(v)


@njit(cache=True)
def loss_step(loss, param, a, z, y, sq):  # type: ignore[no-untyped-def]
    """The new a that maximises -l*(-a') - (a' - a) z - sq (a' - a)^2 / 2  (5); sq may be zero."""
    if loss == SQUARED:
        return a + (y - z - a) / (1.0 + sq)
    sq = max(sq, TINY)
    if loss <= LOGISTIC:
        t = a * y
        slack = 1.0 - y * z
        if loss == LOGISTIC:
            return y * _logistic_step(t, y * z, sq)
        if loss == HINGE:
            return y * min(max(t + slack / sq, 0.0), 1.0)
        if loss == SQUARED_HINGE:
            return y * max(t + (slack - t) / (1.0 + sq), 0.0)
        return y * min(max(t + (slack - param * t) / (param + sq), 0.0), 1.0)
    if loss == POISSON:
        return _poisson_step(a, z, y, sq)
    if loss == HUBER:
        return min(max(a + (y - z - a) / (1.0 + sq), -param), param)
    v = a + (y - z) / sq
    if loss == QUANTILE:
        return min(max(v, param - 1.0), param)
    shrunk = max(abs(v) - param / sq, 0.0)
    return min(shrunk, 1.0) if v > 0 else -min(shrunk, 1.0)


@njit(cache=True)
def loss_bracket(loss, param, a, z, y):  # type: ignore[no-untyped-def]
    """The Fenchel-Young bracket l(z) + l*(-a) + a z, or for the logistic loss a bound on it that needs no logarithm:
    it is the Kullback-Leibler divergence of t = a y from s = 1 / (1 + exp(y z)), at most (t - s)^2 / (s (1 - s)).
    """
    if loss == LOGISTIC:
        e = np.exp(min(max(y * z, -300.0), 300.0))
        off = a * y * (1.0 + e) - 1.0
        return off * off / e
    return loss_value(loss, param, z, y) + loss_conjugate(loss, param, a, y) + a * z


@njit(cache=True)
def loss_slope(loss, param, z, y):  # type: ignore[no-untyped-def]
    """-l'(z): the dual variable that belongs to z. Differentiable losses only."""
    if loss == SQUARED:
        return y - z
    if loss <= LOGISTIC:
        slack = 1.0 - y * z
        if loss == LOGISTIC:
            return y / (1.0 + np.exp(y * z))
        if loss == SQUARED_HINGE:
            return y * max(slack, 0.0)
        return y * min(max(slack / param, 0.0), 1.0)
    if loss == POISSON:
        return y - np.exp(z)
    return min(max(y - z, -param), param)  # Huber


@njit(cache=True)
def loss_curvature(loss, param, z, y):  # type: ignore[no-untyped-def]
    """l''(z), or an element of its generalised derivative. Differentiable losses only."""
    if loss == SQUARED:
        return 1.0
    if loss <= LOGISTIC:
        slack = 1.0 - y * z
        if loss == LOGISTIC:
            t = 1.0 / (1.0 + np.exp(abs(z)))
            return t * (1.0 - t)
        if slack <= 0:
            return 0.0
        if loss == SQUARED_HINGE:
            return 1.0
        return 1.0 / param if slack <= param else 0.0  # at the kink the steeper side: a step without curvature is wild
    if loss == POISSON:
        return np.exp(z)
    return 1.0 if abs(y - z) <= param else 0.0  # Huber


def row_dot(X, j, u):  # type: ignore[no-untyped-def]
    """x_j . u in the precision of u."""
    raise TypeError("row_dot runs in compiled code only")


def row_axpy(X, j, f, u):  # type: ignore[no-untyped-def]
    """u += f x_j."""
    raise TypeError("row_axpy runs in compiled code only")


def row_outer(X, j, f, H):  # type: ignore[no-untyped-def]
    """Lower triangle of H += f x_j x_j^T."""
    raise TypeError("row_outer runs in compiled code only")


def _is_chunked(X):  # type: ignore[no-untyped-def]
    return not isinstance(X, types.Array) and X[0].ndim == 2


# LLVM finds no SIMD in loops over chunks by itself (it gathers across them), so these two are written in its language.


def _chunk_at(builder, array, offset):  # type: ignore[no-untyped-def]
    """Where CHUNK numbers of an array lie, and the numbers."""
    number = array.type.pointee
    at = builder.bitcast(builder.gep(array, [offset]), ir.VectorType(number, CHUNK).as_pointer())
    return at, builder.load(at, align=_size(number))


def _size(number):  # type: ignore[no-untyped-def]
    return 4 if isinstance(number, ir.FloatType) else 8


def _check_chunks(chunks, columns, u):  # type: ignore[no-untyped-def]
    """What the two below rely on: arrays without gaps, and weights no less precise than the rows."""
    if {chunks.layout, columns.layout, u.layout} != {"C"} or u.dtype.bitwidth < chunks.dtype.bitwidth:
        raise TypingError("rows in chunks need C-ordered arrays and weights of their precision or more")


def _each_chunk(context, builder, sig, args):  # type: ignore[no-untyped-def]
    """Loop over chunks first..last of (chunks, columns, first, last, u): theirs in u's precision, u's, and where."""
    chunks, columns, u = (context.make_array(sig.args[k])(context, builder, args[k]).data for k in (0, 1, 4))
    vector = ir.VectorType(u.type.pointee, CHUNK)
    one = ir.Constant(args[2].type, 1)
    with cgutils.for_range_slice(builder, args[2], args[3], one, args[2].type) as (k, _):
        _, x = _chunk_at(builder, chunks, builder.mul(k, ir.Constant(k.type, CHUNK)))
        at, here = _chunk_at(builder, u, builder.zext(builder.load(builder.gep(columns, [k])), ir.IntType(64)))
        yield (x if x.type == vector else builder.fpext(x, vector)), here, at


def _times_plus(builder, a, b, c):  # type: ignore[no-untyped-def]
    return builder.fadd(builder.fmul(a, b, flags=["contract"]), c, flags=["contract"])


@intrinsic
def _chunks_dot(typing_context, chunks, columns, first, last, u):  # type: ignore[no-untyped-def]
    _check_chunks(chunks, columns, u)

    def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
        number = context.get_value_type(sig.return_type)
        sums = cgutils.alloca_once_value(builder, ir.Constant(ir.VectorType(number, CHUNK), None))
        for x, here, _ in _each_chunk(context, builder, sig, args):
            builder.store(_times_plus(builder, x, here, builder.load(sums)), sums)
        lanes = builder.load(sums)
        parts = [builder.extract_element(lanes, ir.Constant(ir.IntType(32), k)) for k in range(CHUNK)]
        while len(parts) > 1:
            parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    return u.dtype(chunks, columns, first, last, u), generate


@intrinsic
def _chunks_axpy(typing_context, chunks, columns, first, last, u, f):  # type: ignore[no-untyped-def]
    _check_chunks(chunks, columns, u)

    def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
        f = args[5]
        lanes = ir.Constant(ir.VectorType(f.type, CHUNK), ir.Undefined)
        for k in range(CHUNK):
            lanes = builder.insert_element(lanes, f, ir.Constant(ir.IntType(32), k))
        for x, here, at in _each_chunk(context, builder, sig, args):
            builder.store(_times_plus(builder, x, lanes, here), at, align=_size(f.type))
        return context.get_dummy_value()

    return types.void(chunks, columns, first, last, u, f), generate


@njit(cache=True, nogil=True)
def chunks_in_use(X, starts, most):  # type: ignore[no-untyped-def]
    """Of up to `most` rows of each unit, spread over it: how many chunks are not all zero, and how many there are."""
    used = asked = 0
    for i in range(starts.shape[0] - 1):
        n = starts[i + 1] - starts[i]
        for k in range(min(n, most)):
            row = X[starts[i] + np.int64(0.6180339887498949 * n * k) % n]
            for c in range(X.shape[1] // CHUNK):
                some = False
                for r in range(CHUNK):
                    some |= row[CHUNK * c + r] != 0
                used += some
                asked += 1
    return used, asked


@njit(cache=True, nogil=True)
def pack_chunks(X, bits, chunks, columns, indptr):  # type: ignore[no-untyped-def]
    """Copy the chunks of dense rows that are not all zero; `bits` are X's numbers as unsigned integers of their size.

    The last chunk of a row ends with the row: where it overlaps the one before, it holds zeros.
    """
    n, d = X.shape
    sign = np.uint64(1) << np.uint64(8 * X.itemsize - 1)  # a zero may have one
    found = 0
    for j in range(n):
        indptr[j] = found
        row, row_bits = X[j], bits[j]
        for c in range(d // CHUNK):
            k = CHUNK * c
            some = row_bits[k]
            for r in range(1, CHUNK):
                some |= row_bits[k + r]
            if some & ~sign != 0:
                chunk = chunks[found]
                for r in range(CHUNK):
                    chunk[r] = row[k + r]
                columns[found] = k
                found += 1
        rest = d % CHUNK
        if row[d - rest :].any():
            chunks[found] = 0
            chunks[found, CHUNK - rest :] = row[d - rest :]
            columns[found] = d - CHUNK
            found += 1
    indptr[n] = found
    return found


@overload(row_dot, jit_options={"fastmath": FAST})
def _row_dot(X, j, u):  # type: ignore[no-untyped-def]
    if _is_chunked(X):

        def chunked(X, j, u):  # type: ignore[no-untyped-def]
            chunks, columns, indptr = X
            return _chunks_dot(chunks, columns, indptr[j], indptr[j + 1], u)  # type: ignore[call-arg]

        return chunked

    if isinstance(X, types.Array):

        def dense(X, j, u):  # type: ignore[no-untyped-def]
            total = u.dtype.type(0)
            for k in range(u.shape[0]):
                total += X[j, k] * u[k]
            return total

        return dense

    def csr(X, j, u):  # type: ignore[no-untyped-def]
        data, indices, indptr = X
        total = u.dtype.type(0)
        for k in range(indptr[j], indptr[j + 1]):
            total += data[k] * u[indices[k]]
        return total

    return csr


@overload(row_axpy, jit_options={"fastmath": FAST})
def _row_axpy(X, j, f, u):  # type: ignore[no-untyped-def]
    if _is_chunked(X):

        def chunked(X, j, f, u):  # type: ignore[no-untyped-def]
            chunks, columns, indptr = X
            _chunks_axpy(chunks, columns, indptr[j], indptr[j + 1], u, u.dtype.type(f))  # type: ignore[call-arg]

        return chunked

    if isinstance(X, types.Array):

        def dense(X, j, f, u):  # type: ignore[no-untyped-def]
            factor = u.dtype.type(f)
            for k in range(u.shape[0]):
                u[k] += factor * X[j, k]

        return dense

    def csr(X, j, f, u):  # type: ignore[no-untyped-def]
        data, indices, indptr = X
        factor = u.dtype.type(f)
        for k in range(indptr[j], indptr[j + 1]):
            u[indices[k]] += factor * data[k]

    return csr


@overload(row_outer, jit_options={"fastmath": FAST})
def _row_outer(X, j, f, H):  # type: ignore[no-untyped-def]
    if _is_chunked(X):

        def chunked(X, j, f, H):  # type: ignore[no-untyped-def]
            chunks, columns, indptr = X
            for k in range(indptr[j], indptr[j + 1]):
                for a in range(CHUNK):
                    row = np.int64(columns[k]) + a
                    g = f * chunks[k, a]
                    if g != 0:
                        for r in range(indptr[j], k + 1):
                            for b in range(CHUNK if r < k else a + 1):
                                H[row, np.int64(columns[r]) + b] += g * chunks[r, b]

        return chunked

    if isinstance(X, types.Array):

        def dense(X, j, f, H):  # type: ignore[no-untyped-def]
            for k in range(H.shape[0]):
                g = f * X[j, k]
                if g != 0:
                    for r in range(k + 1):
                        H[k, r] += g * X[j, r]

        return dense

    def csr(X, j, f, H):  # type: ignore[no-untyped-def]
        data, indices, indptr = X
        for k in range(indptr[j], indptr[j + 1]):
            for r in range(indptr[j], indptr[j + 1]):
                if indices[r] <= indices[k]:
                    H[indices[k], indices[r]] += f * data[k] * data[r]

    return csr


@njit(cache=True)
def _next(state):  # type: ignore[no-untyped-def]
    """splitmix64: the next state; its mixed value is the random number."""
    return state + np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True)
def _mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def stream(seed, unit, round_number):  # type: ignore[no-untyped-def]
    """The random stream of (seed, unit, round): the same wherever and with whatever neighbours the unit runs."""
    state = _mix(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15))
    state = _mix(state ^ np.uint64(unit) * np.uint64(0xD1342543DE82EF95))
    return _mix(state ^ np.uint64(round_number) * np.uint64(0xAEF17502108EF2D9))


@njit(cache=True)
def _below(state, n):  # type: ignore[no-untyped-def]
    return np.int64(((_mix(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def squared_norms(X, q):  # type: ignore[no-untyped-def]
    one = np.ones(1)
    for j in range(q.shape[0]):
        q[j] = row_square(X, j, one)


@njit(cache=True, nogil=True)
def sums_by_unit(values, starts, sums):  # type: ignore[no-untyped-def]
    for i in range(sums.shape[0]):
        sums[i] = 0.0
        for j in range(starts[i], starts[i + 1]):
            sums[i] += values[j]


def row_square(X, j, like):  # type: ignore[no-untyped-def]
    """x_j . x_j in the precision of `like`."""
    raise TypeError("row_square runs in compiled code only")


@overload(row_square, jit_options={"fastmath": FAST})
def _row_square(X, j, like):  # type: ignore[no-untyped-def]
    if isinstance(X, types.Array):

        def dense(X, j, like):  # type: ignore[no-untyped-def]
            total = like.dtype.type(0)
            for k in range(X.shape[1]):
                x = like.dtype.type(X[j, k])
                total += x * x
            return total

        return dense

    def csr(X, j, like):  # type: ignore[no-untyped-def]
        data, _, indptr = X
        total = like.dtype.type(0)
        for k in range(indptr[j], indptr[j + 1]):
            x = like.dtype.type(data[k])
            total += x * x
        return total

    return csr


@njit(cache=True, nogil=True, fastmath=FAST)
def evaluate_unit(units, i, alpha, w):  # type: ignore[no-untyped-def]
    """Sums over unit i of p l(z), p l*(-alpha) and the Fenchel-Young brackets p [l(z) + l*(-alpha) + alpha z]  (4)."""
    loss, param = units.loss[i], units.param[i]
    value = conjugate = bracket = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        p = units.p[j]
        if p > 0:
            z = row_dot(units.X, j, w)
            value_at = loss_value(loss, param, z, units.y[j])
            c = loss_conjugate(loss, param, alpha[j], units.y[j])
            value += p * value_at
            conjugate += p * c
            bracket += p * (value_at + c + alpha[j] * z)
    return value, conjugate, bracket


@njit(cache=True, nogil=True, fastmath=FAST)
def conjugate_unit(units, i, alpha):  # type: ignore[no-untyped-def]
    """Sum over unit i of p l*(-alpha)."""
    total = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        if units.p[j] > 0:
            total += units.p[j] * loss_conjugate(units.loss[i], units.param[i], alpha[j], units.y[j])
    return total


@njit(cache=True, nogil=True)
def evaluate(units, alpha, W, value, conjugate, bracket):  # type: ignore[no-untyped-def]
    for i in range(W.shape[0]):
        value[i], conjugate[i], bracket[i] = evaluate_unit(units, i, alpha, W[i])


@njit(cache=True, nogil=True)
def conjugates(units, alpha, out):  # type: ignore[no-untyped-def]
    """sum p l*(-alpha) of each unit."""
    for i in range(out.shape[0]):
        out[i] = conjugate_unit(units, i, alpha)


@njit(cache=True, nogil=True)
def slopes(units, W, smooth, alpha):  # type: ignore[no-untyped-def]
    """alpha = -l'(z) at W for the smooth units: the dual variables that belong to a W from elsewhere."""
    for i in range(W.shape[0]):
        if smooth[i]:
            for j in range(units.starts[i], units.starts[i + 1]):
                alpha[j] = loss_slope(units.loss[i], units.param[i], row_dot(units.X, j, W[i]), units.y[j])


@njit(cache=True, nogil=True)
def dual_vector(units, i, alpha, b):  # type: ignore[no-untyped-def]
    """b_i = sum_j p_j alpha_j x_j, always made anew from alpha so that it cannot drift."""
    b[:] = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        f = units.p[j] * alpha[j]
        if f != 0:
            row_axpy(units.X, j, f, b)


@njit(cache=True, nogil=True)
def dual_vectors(units, alpha, B):  # type: ignore[no-untyped-def]
    for i in range(B.shape[0]):
        dual_vector(units, i, alpha, B[i])


@njit(cache=True, nogil=True)
def _shuffle(order, n, state):  # type: ignore[no-untyped-def]
    for k in range(n - 1, 0, -1):
        state = _next(state)
        other = _below(state, k + 1)
        order[k], order[other] = order[other], order[k]
    return state


@njit(cache=True, nogil=True, fastmath=FAST)
def uniform_unit(units, i, alpha, u, s, steps, state):  # type: ignore[no-untyped-def]
    """The paper's Algorithm 2: coordinate steps (5) on rows of unit i drawn uniformly; u = c + s b follows alpha."""
    first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
    for _ in range(steps if n > 0 else 0):
        state = _next(state)
        j = first + _below(state, n)
        p, a, y = units.p[j], alpha[j], units.y[j]
        if p > 0:
            z = np.float64(row_dot(units.X, j, u))
            new = loss_step(units.loss[i], units.param[i], a, z, y, s * p * units.q[j])
            if new != a:
                alpha[j] = new
                row_axpy(units.X, j, s * p * (new - a), u)
    return steps if n > 0 else 0


@njit(cache=True, nogil=True, fastmath=FAST)
def sdca_unit(  # type: ignore[no-untyped-def]
    units, i, alpha, u, w, look, s, target, steps, block, state, order, calm, rest
):  # fmt: skip
    """Passes of coordinate ascent (5) over unit i; u = c + s b follows alpha. Returns the number of steps and, if one
    is to `look`, the loss at w and the brackets there, taken on the way of the first pass, which meets every row.

    A pass takes blocks of neighbouring rows in shuffled order, as memory likes it. A row whose bracket is small beside
    the target is left alone for one pass, for three when it is met calm again, and so on. The last pass finds brackets,
    each at the u of its moment, that sum to at most `target` (there is none if that is negative); those of the rows it
    left alone were CALM * target at most when they were last met.
    """
    first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
    loss, param = units.loss[i], units.param[i]
    n_blocks = (n + block - 1) // block
    calm_below = CALM * target if 0 <= target < np.inf else -1.0
    loss_w = bracket_w = 0.0
    for k in range(n_blocks):
        order[k] = k
    taken = passes = 0
    while n > 0 and taken < steps and passes * n < 4 * steps:
        seen = 0.0
        state = _shuffle(order, n_blocks, state)
        for k in range(n_blocks):
            begin = first + order[k] * block
            for j in range(begin, min(begin + block, first + n)):
                if rest[j] > 0:  # not in the first pass: nobody rests when a round begins
                    rest[j] -= np.uint8(1)
                    continue
                if taken == steps:
                    break
                p, a, y = units.p[j], alpha[j], units.y[j]
                taken += 1
                if p <= 0:
                    continue
                z = np.float64(row_dot(units.X, j, u))
                if look and passes == 0:
                    z_w = row_dot(units.X, j, w)
                    value = loss_value(loss, param, z_w, y)
                    loss_w += p * value
                    bracket_w += p * (value + loss_conjugate(loss, param, a, y) + a * z_w)
                if target >= 0:
                    bracket = loss_bracket(loss, param, a, z, y)
                    seen += p * bracket
                    if bracket <= calm_below:
                        calm[j] = min(calm[j] + np.uint8(1), LONGEST_REST)
                        rest[j] = (np.uint8(1) << calm[j]) - np.uint8(1)
                        continue
                    calm[j] = rest[j] = np.uint8(0)
                new = loss_step(loss, param, a, z, y, s * p * units.q[j])
                if new != a:
                    alpha[j] = new
                    row_axpy(units.X, j, s * p * (new - a), u)
        passes += 1
        if seen <= target:
            break
    return taken, loss_w, bracket_w


@njit(cache=True, nogil=True)
def _solve_lower(H, g):  # type: ignore[no-untyped-def]
    """Overwrite g with H^-1 g; H is positive definite and only its lower triangle is read (it becomes its Cholesky
    factor).
    """
    d = g.shape[0]
    for k in range(d):
        for i in range(k + 1):
            total = H[k, i]
            for r in range(i):
                total -= H[k, r] * H[i, r]
            H[k, i] = np.sqrt(max(total, TINY)) if k == i else total / H[i, i]
    for k in range(d):
        for r in range(k):
            g[k] -= H[k, r] * g[r]
        g[k] /= H[k, k]
    for k in range(d - 1, -1, -1):
        for r in range(k + 1, d):
            g[k] -= H[r, k] * g[r]
        g[k] /= H[k, k]


@njit(cache=True, nogil=True)
def newton_unit(units, i, alpha, u, c, s, iterations):  # type: ignore[no-untyped-def]
    """Newton with line search on the primal form (6): min f_i(u) + |u - c|^2 / (2 s), then alpha = -l'(z).

    Returns the number of steps, negative if they did not suffice.
    """
    first, last = units.starts[i], units.starts[i + 1]
    loss, param = units.loss[i], units.param[i]
    d = u.shape[0]
    H = np.empty((d, d))
    z = np.empty(last - first)
    along = np.empty(last - first)
    gradient = np.empty(d)
    for j in range(first, last):
        z[j - first] = row_dot(units.X, j, u)
    taken, near = 0, False
    while taken < iterations and not near:
        taken += 1
        H[:] = 0.0
        gradient[:] = (u - c) / s
        for j in range(first, last):
            if units.p[j] > 0:
                alpha[j] = loss_slope(loss, param, z[j - first], units.y[j])
                row_axpy(units.X, j, -units.p[j] * alpha[j], gradient)
        size = np.dot(gradient, gradient)
        # The server works with c + s b, which lies s |gradient| away from u; below the rounding of the gradient's own
        # terms nothing is left to gain.
        near = s * s * size <= 1e-20 * (np.dot(u, u) + np.dot(c, c)) or size <= 1e-28 * (1.0 + np.dot(u, u) / (s * s))
        if near:
            break
        for j in range(first, last):
            curvature = units.p[j] * loss_curvature(loss, param, z[j - first], units.y[j])
            if curvature > 0:
                row_outer(units.X, j, curvature, H)
        for k in range(d):
            H[k, k] += 1.0 / s
        direction = -gradient
        _solve_lower(H, direction)
        descent = np.dot(gradient, direction)
        now = 0.0
        for j in range(first, last):
            along[j - first] = row_dot(units.X, j, direction)
            if units.p[j] > 0:
                now += units.p[j] * loss_value(loss, param, z[j - first], units.y[j])
        away = np.dot(u - c, u - c)
        cross = np.dot(u - c, direction)
        length = np.dot(direction, direction)
        t = 1.0
        for _ in range(40):
            change = 0.5 * (2 * t * cross + t * t * length) / s - now
            for j in range(first, last):
                if units.p[j] > 0:
                    change += units.p[j] * loss_value(loss, param, z[j - first] + t * along[j - first], units.y[j])
            if change <= 1e-4 * t * descent + 1e-15 * (abs(now) + away / s):
                break
            t *= 0.5
        u += t * direction
        for j in range(last - first):
            z[j] += t * along[j]
    return taken if near else -taken


@njit(cache=True, nogil=True)
def gram_unit(units, i, alpha, u, c, s, gram):  # type: ignore[no-untyped-def]
    """The exact solution of (6) for squared loss, from the unit's eigen-decomposition."""
    V = gram.vectors[i]
    coordinates = np.dot(c, V)
    for k in range(u.shape[0]):
        coordinates[k] = (gram.target[i, k] + coordinates[k] / s) / (gram.values[i, k] + 1.0 / s)
    u[:] = np.dot(V, coordinates)
    for j in range(units.starts[i], units.starts[i + 1]):
        alpha[j] = units.y[j] - row_dot(units.X, j, u)


@njit(cache=True, nogil=True)
def local_round(  # type: ignore[no-untyped-def]
    units, ids, alpha, B, C, U, W, step, solver, gram, steps, block, target, seed, round_number, factor, coupling,
    look, at_u, from_zero, work, calm, rest, out
):  # fmt: skip
    """One round of a worker: `look` at W, solve (6) for each unit, leaving alpha, B (from alpha), U = C + s B.

    `block` is the number of rows in a block, 0 where rows are drawn uniformly. `factor` (units x r, r may be 0) holds
    the worker's rows of a covariance factor: with coupling = rho / lambda the units are swept in turn and each feels
    what the ones before it changed, the block version (10). Where all is zero when the round begins (`from_zero`), b is
    read off u = s b instead of summed anew. out[i] is (loss at w, brackets there, loss at u, conjugate,
    steps); what nobody looks at is infinite.
    """
    d = B.shape[1]
    moved = np.zeros((factor.shape[1], d))
    b_before = np.empty(d)
    longest = 0
    for i in range(B.shape[0]):
        longest = max(longest, units.starts[i + 1] - units.starts[i])
    order = np.empty(longest, np.int64)
    for i in range(B.shape[0]):
        b, c, u, s = B[i], C[i], U[i], step[i]
        first, last = units.starts[i], units.starts[i + 1]
        if factor.shape[1] > 0:
            c += coupling * np.dot(factor[i], moved)
            b_before[:] = b
        u[:] = c + s * b
        descend = s > 0 and solver[i] == SDCA
        on_the_way = look and descend and block[i] > 0 and steps[i] >= last - first
        out[i, :3] = np.inf
        if look and not on_the_way:
            out[i, 0], _, out[i, 1] = evaluate_unit(units, i, alpha, W[i])
        out[i, 4] = 0.0
        if s > 0 and solver[i] == NEWTON:
            start = alpha[first:last].copy()
            out[i, 4] = newton_unit(units, i, alpha, u, c, s, 60)
            if out[i, 4] < 0:  # coordinate ascent never makes the dual worse
                alpha[first:last] = start
                u[:] = c + s * b
                descend = True
        elif s > 0 and solver[i] == GRAM:
            gram_unit(units, i, alpha, u, c, s, gram)
            out[i, 4] = 1.0
        if descend:
            work[:] = u
            state = stream(seed, ids[i], round_number)
            if block[i] > 0:
                out[i, 4], loss_w, bracket_w = sdca_unit(
                    units, i, alpha, work, W[i], on_the_way, s, target[i], steps[i], block[i], state, order, calm, rest
                )
                if on_the_way:
                    out[i, 0], out[i, 1] = loss_w, bracket_w
            else:
                out[i, 4] = uniform_unit(units, i, alpha, work, s, steps[i], state)
        if from_zero and descend:
            b[:] = work / s
        else:
            dual_vector(units, i, alpha, b)
        u[:] = c + s * b
        if at_u:
            out[i, 2], out[i, 3], _ = evaluate_unit(units, i, alpha, u)
        else:
            out[i, 3] = conjugate_unit(units, i, alpha)
        if factor.shape[1] > 0:
            for r in range(factor.shape[1]):
                moved[r] += factor[i, r] * (b - b_before)


@njit(cache=True, nogil=True, fastmath=FAST)
def metric_unit(  # type: ignore[no-untyped-def]
    units, i, alpha, b, v, directions, floor, passes, block, state, order, along, q, before, e
):  # fmt: skip
    """Passes of coordinate ascent on (37) for unit i, in the metric F F^T + floor I; `directions` are the columns of F.

    v = c + F^T b and e = floor b follow alpha. The first pass keeps what it sees of the rows along the directions:
    without a floor later passes need no more of them, and b is made up for where alpha has changed. Returns the loss at
    u, known without another reading only where there is no floor.
    """
    first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
    loss, param, r = units.loss[i], units.param[i], len(v)
    n_blocks = (n + block - 1) // block
    for k in range(n_blocks):
        order[k] = k
    before[:n] = alpha[first : first + n]
    e[:] = floor * b
    for number in range(passes if n > 0 else 0):
        state = _shuffle(order, n_blocks, state)
        for k in range(n_blocks):
            begin = first + order[k] * block
            for j in range(begin, min(begin + block, first + n)):
                p, a, x = units.p[j], alpha[j], along[j - first]
                if p <= 0:
                    continue
                if number == 0:
                    q[j - first] = floor * units.q[j]
                    for c in range(r):
                        x[c] = row_dot(units.X, j, directions[c])
                        q[j - first] += x[c] * x[c]
                z = np.float64(row_dot(units.X, j, e)) if floor > 0 else 0.0
                for c in range(r):
                    z += x[c] * v[c]
                new = loss_step(loss, param, a, z, units.y[j], p * q[j - first])
                if new != a:
                    alpha[j] = new
                    for c in range(r):
                        v[c] += p * (new - a) * x[c]
                    if floor > 0:
                        row_axpy(units.X, j, floor * p * (new - a), e)
    if floor > 0:
        b[:] = e / floor
        return np.inf
    value = 0.0
    for j in range(first, first + n):
        p, f, z = units.p[j], units.p[j] * (alpha[j] - before[j - first]), 0.0
        if p <= 0:
            continue
        if f != 0:
            row_axpy(units.X, j, f, b)
        for c in range(r):
            z += along[j - first, c] * v[c]
        value += p * loss_value(loss, param, z, units.y[j])
    return value


@njit(cache=True, nogil=True)
def catch_up(  # type: ignore[no-untyped-def]
    units, ids, alpha, B, C, directions, floor, passes, block, seed, round_number, out
):  # fmt: skip
    """Improve alpha and B on the problems (37) of all units; out[i] is (loss at u or infinity, conjugate, steps)."""
    r, d, longest = directions.shape[0], B.shape[1], 0
    for i in range(B.shape[0]):
        longest = max(longest, units.starts[i + 1] - units.starts[i])
    order, along, q = np.empty(longest, np.int64), np.empty((longest, r)), np.empty(longest)
    before, e = np.empty(longest), np.empty(d)
    for i in range(B.shape[0]):
        v, state = C[i] + np.dot(directions, B[i]), stream(seed, ids[i], round_number)
        out[i, 0] = metric_unit(
            units, i, alpha, B[i], v, directions, floor, passes, block[i], state, order, along, q, before, e
        )
        out[i, 1] = conjugate_unit(units, i, alpha)
        out[i, 2] = passes * (units.starts[i + 1] - units.starts[i])


def compiled_for(value: Any, conjugate: Any, step: Any) -> python_types.SimpleNamespace:
    """The kernels that look at the loss, compiled anew from the same source with an author's own functions for
    CUSTOM.
    """
    builtin_value, builtin_conjugate, builtin_step = loss_value, loss_conjugate, loss_step
    builtin_bracket = loss_bracket

    @njit
    def any_value(loss, param, z, y):  # type: ignore[no-untyped-def]
        return value(z, y) if loss == CUSTOM else builtin_value(loss, param, z, y)

    @njit
    def any_conjugate(loss, param, a, y):  # type: ignore[no-untyped-def]
        return conjugate(a, y) if loss == CUSTOM else builtin_conjugate(loss, param, a, y)

    @njit
    def any_step(loss, param, a, z, y, sq):  # type: ignore[no-untyped-def]
        return step(a, z, y, sq) if loss == CUSTOM else builtin_step(loss, param, a, z, y, sq)

    @njit
    def any_bracket(loss, param, a, z, y):  # type: ignore[no-untyped-def]
        return value(z, y) + conjugate(a, y) + a * z if loss == CUSTOM else builtin_bracket(loss, param, a, z, y)

    scope = dict(globals())
    scope.update(loss_value=any_value, loss_conjugate=any_conjugate, loss_step=any_step, loss_bracket=any_bracket)
    names = (
        "uniform_unit", "sdca_unit", "evaluate_unit", "conjugate_unit", "evaluate", "conjugates", "local_round",
        "metric_unit", "catch_up",
    )  # fmt: skip
    for name in names:
        source = globals()[name].py_func
        fast: Any = FAST if name.endswith("_unit") else False
        scope[name] = njit(nogil=True, fastmath=fast)(python_types.FunctionType(source.__code__, scope, name))
    return python_types.SimpleNamespace(**{name: scope[name] for name in names})


@njit(cache=True, nogil=True, fastmath=FAST)
def predictions(units, W, z):  # type: ignore[no-untyped-def]
    """z_ij = w_i . x_ij of every row."""
    for i in range(W.shape[0]):
        for j in range(units.starts[i], units.starts[i + 1]):
            z[j] = row_dot(units.X, j, W[i])


@njit(cache=True, nogil=True, fastmath=FAST)
def uniform_steps(units, task, alpha, W, sigma, steps, seed, number):  # type: ignore[no-untyped-def]
    """Coordinate steps (5) on rows drawn uniformly from all tasks, W (3) kept in step; `sigma` is Sigma / lambda.

    Steps are taken one after the other, so rho is one. A step that moves alpha moves the weights of every task.
    """
    n, state = alpha.shape[0], stream(seed, 0, number)
    for _ in range(steps):
        state = _next(state)
        j = _below(state, n)
        p, a, i = units.p[j], alpha[j], task[j]
        if p <= 0:
            continue
        z = np.float64(row_dot(units.X, j, W[i]))
        new = loss_step(units.loss[i], units.param[i], a, z, units.y[j], sigma[i, i] * p * units.q[j])
        if new != a:
            alpha[j] = new
            for k in range(W.shape[0]):
                f = p * (new - a) * sigma[i, k]
                if f != 0:
                    row_axpy(units.X, j, f, W[k])


@njit(cache=True, nogil=True, fastmath=FAST)
def gram_pass(units, task, alpha, z, gram, sigma, order, seed, number, inner):  # type: ignore[no-untyped-def]
    """One coordinate step (5) on every row of `order`, which is shuffled first; `sigma` is Sigma / lambda.

    The predictions z of all rows are kept in step through one row of the Gram matrix (rows of X times each other,
    symmetric) a moved coordinate. The rows that moved are put first in `order`; returns how many they are.
    """
    m, n, state = sigma.shape[0], order.shape[0], stream(seed, inner, number)
    for k in range(n - 1, 0, -1):
        state = _next(state)
        other = _below(state, k + 1)
        order[k], order[other] = order[other], order[k]
    moved = 0
    for k in range(n):
        j = order[k]
        p, a, i = units.p[j], alpha[j], task[j]
        if p <= 0:
            continue
        new = loss_step(units.loss[i], units.param[i], a, z[j], units.y[j], sigma[i, i] * p * units.q[j])
        if new == a:
            continue
        alpha[j] = new
        order[k], order[moved] = order[moved], order[k]
        moved += 1
        row = gram[j]
        for t in range(m):
            f = p * (new - a) * sigma[i, t]
            if f != 0:
                for r in range(units.starts[t], units.starts[t + 1]):
                    z[r] += f * row[r]
    return moved
