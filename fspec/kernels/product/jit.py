"""Device code of the dense product."""

import triton
import triton.language as tl


@triton.jit
def tile_sum(
    x,
    w,
    rows,
    inner,
    outer,
    x_row,
    w_inner,
    w_outer,
    part,
    ROWS: tl.constexpr,
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
    SWAP: tl.constexpr,
    TMA: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of x w in fp32, `[OUTER, ROWS]` with SWAP; in sums of `part` terms."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * OUTER
    # outputs past the end read the last one; they are not stored
    col = tl.minimum(first + tl.arange(0, OUTER), outer - 1).to(tl.int64)
    term = tl.arange(0, INNER)
    x_at = x + row.to(tl.int64)[:, None] * x_row + term[None, :]
    live = (row < rows)[:, None]
    if not TMA:
        w_at = w + col[:, None] * w_outer + term.to(tl.int64)[None, :] * w_inner
    if SWAP:
        total = tl.zeros([OUTER, ROWS], tl.float32)
    else:
        total = tl.zeros([ROWS, OUTER], tl.float32)
    done = tl.zeros_like(total)
    for k in range(0, inner, INNER):
        if PARTS:
            if (k % part == 0) & (k > 0):
                done += total
                total = tl.zeros_like(total)
        if EVEN:
            left = tl.load(x_at, mask=live, other=0.0)
        else:
            left = tl.load(x_at, mask=live & (k + term < inner)[None, :], other=0.0)
        if TMA:
            right = w.load([first, k])
        else:
            if EVEN:
                right = tl.load(w_at)
            else:
                right = tl.load(w_at, mask=(k + term < inner)[None, :], other=0.0)
            w_at += INNER * w_inner
        if SWAP:
            total = tl.dot(right, tl.trans(left), total, input_precision=PRECISION)
        else:
            total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
        x_at += INNER
    if PARTS:
        total += done
    return total


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    x,
    w,
    y,
    rows,
    inner,
    outer,
    x_row,
    w_inner,
    w_outer,
    part,
    ROWS: tl.constexpr,
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
    SWAP: tl.constexpr,
    TMA: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of y = x w."""
    total = tile_sum(
        x,
        w,
        rows,
        inner,
        outer,
        x_row,
        w_inner,
        w_outer,
        part,
        ROWS,
        OUTER,
        INNER,
        EVEN,
        SWAP,
        TMA,
        PARTS,
        PRECISION,
    )
    if SWAP:
        total = tl.trans(total)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    at = y + row.to(tl.int64)[:, None] * outer + col[None, :]
    keep = (row < rows)[:, None] & (col < outer)[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=keep)
