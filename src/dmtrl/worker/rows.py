"""Row access for compiled code: one name per operation, whatever the row format (dense, CSR or chunked).

`row_dot(X, j, u)` and its siblings are chosen by the type of X when a kernel is compiled. X is a C-ordered array, CSR's
(data, indices, indptr), or the same three arrays for chunks of a row: (numbers x CHUNK, first column of each, indptr).
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

from dmtrl.numerics.compile_cache import FAST, KERNEL, njit

CHUNK = 8  # numbers of a row that are kept or left out together


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


@njit(**KERNEL)
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


@njit(**KERNEL)
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
            for k in range(X.shape[1]):
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
            for k in range(X.shape[1]):
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
            for k in range(X.shape[1]):
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
