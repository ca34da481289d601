"""Device code of the head and its search."""

import triton
import triton.language as tl

from fspec.kernels.product.jit import tile_sum

LEAST = tl.constexpr(-(2**63))


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
    """The greatest COUNT keys in one block of a row of logits.

    A bf16 logit and its place in the block make a key of 32 bits, twice as fast to
    search as one of 64.
    """
    row = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK
    i = tl.arange(0, BLOCK)
    inside = first + i < outer
    x = tl.load(logits + row * outer + first + i, mask=inside, other=0.0)
    out = best + (row * tl.num_programs(0) + tl.program_id(0)) * COUNT
    if x.dtype == tl.bfloat16:
        x = tl.where(x.to(tl.float32) == 0.0, 0.0, x.to(tl.float32)).to(tl.bfloat16)
        bits = x.to(tl.int16, bitcast=True).to(tl.int32)
        order = tl.where(bits < 0, bits ^ 0x7FFF, bits)
        keys = tl.where(inside, (order << 16) | (0xFFFF - i), -(2**31))
        for j in tl.static_range(COUNT):
            key = tl.max(keys, 0)
            keys = tl.where(keys == key, -(2**31), keys)
            high = key >> 16
            wide = tl.where(high < 0, high ^ 0x7FFF, high) << 16
            found = _keys(
                wide.to(tl.float32, bitcast=True), first + 0xFFFF - (key & 0xFFFF)
            )
            tl.store(out + j, tl.where(key == -(2**31), LEAST, found))
    else:
        keys = tl.where(inside, _keys(x.to(tl.float32), first + i), LEAST)
        _store_greatest(keys, out, 0, COUNT, True)


@triton.jit
def keys_kernel(keys, best, count, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """The greatest COUNT of one block of a row of keys."""
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.load(keys + row * count + at, mask=at < count, other=LEAST)
    out = best + (row * tl.num_programs(0) + tl.program_id(0)) * COUNT
    _store_greatest(k, out, 0, COUNT, True)
