"""The head on a GPU: logits stay in registers, the greatest of each tile leave."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from fspec.kernels.backend import Launch
from fspec.kernels.product.triton import (
    Tile,
    choose_tile,
    loader,
    tile_arguments,
    tile_sum,
)

LEAST = tl.constexpr(-(2**63))
BLOCK = 2048


@triton.jit
def _keys(logits, ids):
    """Sortable int64: greater logit first, then lower id; -0 counts as 0."""
    x = tl.where(logits == 0.0, 0.0, logits)
    bits = x.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return (order << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def _store_greatest(keys, out, AXIS: tl.constexpr, COUNT: tl.constexpr, keep):
    for i in tl.static_range(COUNT):
        best = tl.max(keys, AXIS)
        tl.store(out + i, best, mask=keep)
        if i + 1 < COUNT:
            keys = tl.where(keys == tl.expand_dims(best, AXIS), LEAST, keys)


@triton.jit(do_not_specialize=["rows"])
def head_kernel(
    x,
    w,
    best,
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
    COUNT: tl.constexpr,
):
    """The greatest COUNT keys of each row in one tile: best `[row, tile, COUNT]`."""
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
    logits = total.to(x.dtype.element_ty).to(tl.float32)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ids = tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    out = best + (row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * COUNT
    if SWAP:
        keys = tl.where((ids < outer)[:, None], _keys(logits, ids[:, None]), LEAST)
        _store_greatest(keys, out, 0, COUNT, row < rows)
    else:
        keys = tl.where((ids < outer)[None, :], _keys(logits, ids[None, :]), LEAST)
        _store_greatest(keys, out, 1, COUNT, row < rows)


@triton.jit
def logits_kernel(logits, best, outer, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """The greatest COUNT keys in one block of a row of logits."""
    row = tl.program_id(1).to(tl.int64)
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < outer
    x = tl.load(logits + row * outer + ids, mask=inside, other=0.0).to(tl.float32)
    keys = tl.where(inside, _keys(x, ids), LEAST)
    out = best + (row * tl.num_programs(0) + tl.program_id(0)) * COUNT
    _store_greatest(keys, out, 0, COUNT, True)


@triton.jit
def keys_kernel(keys, best, count, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """The greatest COUNT of one block of a row of keys."""
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.load(keys + row * count + at, mask=at < count, other=LEAST)
    out = best + (row * tl.num_programs(0) + tl.program_id(0)) * COUNT
    _store_greatest(k, out, 0, COUNT, True)


def _head(
    hidden: Float[Tensor, "r d"], w: Float[Tensor, "d n"], count: int
) -> Int[Tensor, "r m"]:
    rows, outer = hidden.shape[0], w.shape[1]
    tile = choose_tile(min(rows, 16), outer, hidden)
    if not tile.swap:
        tile = Tile(tile.rows, min(tile.outer, 64), *tile[2:])
    tiles = triton.cdiv(outer, tile.outer)
    best = hidden.new_empty(rows, tiles * count, dtype=torch.int64)
    numbers, options = tile_arguments(hidden, w, tile, None)
    head_kernel[(triton.cdiv(rows, tile.rows), tiles)](
        hidden, loader(w, tile), best, *numbers, COUNT=count, **options
    )
    return _reduce(best, count)


def _reduce(best: Int[Tensor, "r m"], count: int) -> Int[Tensor, "r count"]:
    rows, keys = best.shape
    while keys > count:
        blocks = triton.cdiv(keys, BLOCK)
        less = best.new_empty(rows, blocks * count)
        keys_kernel[(blocks, rows)](
            best, less, keys, BLOCK=BLOCK, COUNT=count, **Launch(8)._asdict()
        )
        best, keys = less, blocks * count
    return best


def _values(best: Int[Tensor, "r c"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    order = best >> 32
    bits = torch.where(order < 0, order ^ 0x7FFFFFFF, order).to(torch.int32)
    return bits.view(torch.float32).to(dtype), 0x7FFFFFFF - (best & 0xFFFFFFFF)


def argmax(hidden: Float[Tensor, "r d"], w: Float[Tensor, "d n"]) -> Int[Tensor, " r"]:
    """Id of each row's greatest logit, the lowest of equals; bytes: the head once."""
    return 0x7FFFFFFF - (_head(hidden, w, 1)[:, 0] & 0xFFFFFFFF)


def top(
    hidden: Float[Tensor, "r d"], w: Float[Tensor, "d n"], count: int
) -> tuple[Float[Tensor, "r c"], Int[Tensor, "r c"]]:
    """Greatest logits and their ids, the lowest first of equals."""
    return _values(_head(hidden, w, count), hidden.dtype)


def top_logits(
    logits: Float[Tensor, "r n"], count: int
) -> tuple[Float[Tensor, "r c"], Int[Tensor, "r c"]]:
    """Do as `top` on logits that were written out; bytes: the logits once."""
    rows, outer = logits.shape
    blocks = triton.cdiv(outer, BLOCK)
    best = logits.new_empty(rows, blocks * count, dtype=torch.int64)
    logits_kernel[(blocks, rows)](
        logits.contiguous(), best, outer, BLOCK=BLOCK, COUNT=count, **Launch()._asdict()
    )
    return _values(_reduce(best, count), logits.dtype)
