"""The GPU product: every output is one sum over `in`, unsplit, in ascending order.

Then tile, warps, loader and number of rows change no bit (measured: LOG.md), so each
number of rows takes the tile that is fastest for it, and long prompts the library's
own product where that is proven to give the same bytes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, descriptor, has_descriptors, precision

LIBRARY_ROWS = (4096, 2048, 1024, 512)  # as many rows as the library is asked for


class Tile(NamedTuple):
    """One program's work: rows, outputs, terms a turn; and how it is launched.

    swap: the weight is the left operand, whose side is long where rows are few.
    """

    rows: int
    outer: int
    inner: int
    launch: Launch
    swap: bool = True


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


def choose_tile(rows: int, outer: int, like: Tensor) -> Tile:
    """Choose the fastest tile for a number of rows; all give the same bits."""
    if not like.is_cuda:
        return _xpu_tile(rows, like.dtype)
    if like.dtype == torch.float32:
        return Tile(16, 64, 32, Launch(4, 2))
    narrow = outer < 8192
    if rows > 128:
        return Tile(128, 128, 64, Launch(8, 3), swap=False)
    if rows > 64:
        if narrow:
            return Tile(64, 64, 64, Launch(4, 6))
        if outer < 24576:
            return Tile(64, 128, 64, Launch(4, 4), swap=False)
        return Tile(128, 64, 64, Launch(8, 4))
    if rows > 32:
        if narrow:
            return Tile(64, 64, 128, Launch(4, 4))
        if outer < 24576:
            return Tile(64, 64, 64, Launch(4, 6), swap=False)
        return Tile(64, 128, 64, Launch(4, 3), swap=False)
    if rows > 16:
        return Tile(32, 64, 128, Launch(4, 4))
    if outer > 65536:
        return Tile(16, 128, 128, Launch(4, 3))
    if not narrow and outer < 24576:
        return Tile(16, 64, 128, Launch(4, 4))
    return Tile(16, 32, 256, Launch(4, 4))


def _xpu_tile(rows: int, dtype: torch.dtype) -> Tile:
    if dtype == torch.float32:
        return Tile(16, 32, 32, Launch(4, 1), swap=False)
    if rows <= 8:
        return Tile(8, 64, 64, Launch(4, 1), swap=False)
    if rows <= 32:
        return Tile(32, 64, 64, Launch(4, 1), swap=False)
    return Tile(64, 128, 32, Launch(8, 1), swap=False)


def tile_arguments(
    x: Tensor, w: Tensor, tile: Tile, part: int | None
) -> tuple[tuple, dict]:
    """Arguments of `tile_sum` behind the output, and its constants and launch."""
    inner, outer = w.shape
    tma = has_descriptors(w.t())
    even = inner % tile.inner == 0
    numbers = (x.shape[0], inner, outer, x.stride(0), *w.stride(), part or inner)
    constants = {
        "ROWS": tile.rows,
        "OUTER": tile.outer,
        "INNER": tile.inner,
        "EVEN": even,
        "SWAP": tile.swap,
        "TMA": tma,
        "PARTS": part is not None and part < inner,
        "PRECISION": precision(x.dtype),
    }
    return numbers, constants | tile.launch._asdict()


def loader(w: Tensor, tile: Tile) -> object:
    """What the kernel reads a weight through."""
    if has_descriptors(w.t()):
        return descriptor(w.t(), [tile.outer, tile.inner])
    return w


def run_tile(
    x: Float[Tensor, "r i"],
    w: Float[Tensor, "i o"],
    tile: Tile,
    out: Float[Tensor, "r o"],
    part: int | None = None,
) -> None:
    """Write x w to `out` with a given tile, in sums of `part` terms."""
    numbers, options = tile_arguments(x, w, tile, part)
    grid = (triton.cdiv(x.shape[0], tile.rows), triton.cdiv(w.shape[1], tile.outer))
    product_kernel[grid](x, loader(w, tile), out, *numbers, **options)


def product(
    x: Float[Tensor, "r i"],
    w: Float[Tensor, "i o"],
    library: frozenset[tuple[int, int, int]] = frozenset(),
) -> Float[Tensor, "r o"]:
    """Multiply rows by a dense weight. Bytes: the weight once, x and y.

    Args:
        x: rows of any number.
        w: `[in, out]`; in memory best `[out, in]`.
        library: `(in, out, rows)` at which the library's product is proven to give
            the same bits.
    """
    if x.stride(-1) != 1:
        x = x.contiguous()
    rows, (inner, outer) = x.shape[0], w.shape
    out = x.new_empty(rows, outer)
    first = 0
    for count in LIBRARY_ROWS if library and x.is_contiguous() else ():
        while rows - first >= count and (inner, outer, count) in library:
            torch.mm(x[first : first + count], w, out=out[first : first + count])
            first += count
    if first < rows:
        rest = x[first:]
        run_tile(rest, w, choose_tile(len(rest), outer, x), out[first:])
    return out


def prove(w: Float[Tensor, "i o"]) -> frozenset[tuple[int, int, int]]:
    """Find numbers of rows at which the library gives the bits of the tiles.

    It computes one product of random rows both ways; that the library chooses its
    kernel by shape alone is an assumption.
    """
    if w.dtype == torch.float32 or not w.is_cuda:
        return frozenset()
    inner, outer = w.shape
    random = torch.Generator(w.device).manual_seed(inner * outer)
    most = max(LIBRARY_ROWS)
    x = torch.randn(most, inner, device=w.device, generator=random).to(w.dtype)
    ours = product(x, w)
    return frozenset(
        (inner, outer, rows)
        for rows in LIBRARY_ROWS
        if torch.equal(torch.mm(x[:rows], w), ours[:rows])
    )
