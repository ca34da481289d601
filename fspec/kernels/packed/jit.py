"""Device code of the W4A16 product: the product, the sum of parts, the weight."""

import triton
import triton.language as tl

from fspec.kernels.jit import release_next, wait_before
from fspec.kernels.packed.jit_codes import (
    decode_asym,
    decode_sym,
    load_groups,
    load_zero,
    plane,
    wide,
)


@triton.jit(do_not_specialize=["rows"])
def packed_kernel(
    x,
    words,
    scale,
    zero,
    y,
    rows,
    inner,
    outer,
    x_row,
    blocks,
    each,
    padded,
    ROWS: tl.constexpr,
    OUTER: tl.constexpr,
    GROUP: tl.constexpr,
    ASYM: tl.constexpr,
    EVEN: tl.constexpr,
    ASM: tl.constexpr,
    SWAP: tl.constexpr,
    PDL: tl.constexpr,
):
    """One part of a tile of y `[part, rows, outer]`: `each` blocks of 128 inputs."""
    release_next(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    first = tl.program_id(2) * each
    j = tl.arange(0, 16)
    m = tl.arange(0, OUTER)
    col = tile * OUTER + m
    live = (row < rows)[:, None]
    at = (tile.to(tl.int64) * blocks + first) * OUTER * 16
    word_at = words + at + m[:, None] * 16 + j[None, :]
    x_at = x + row.to(tl.int64)[:, None] * x_row + first * 128
    PER: tl.constexpr = 128 // GROUP
    group = first.to(tl.int64) * PER * padded + col
    if SWAP:
        total = tl.zeros([OUTER, ROWS], tl.float32)
    else:
        total = tl.zeros([ROWS, OUTER], tl.float32)
    end = tl.minimum(first + each, blocks)
    # scales are read one block ahead: the loop's own loads alone are pipelined
    s0, s1, s2, s3, z0, z1, z2, z3 = load_groups(
        scale, zero, group, padded, PER, ASYM, ASM
    )
    for block in range(first, end):
        codes = tl.load(word_at)
        t0, t1, t2, t3 = s0, s1, s2, s3
        u0, u1, u2, u3 = z0, z1, z2, z3
        group += tl.where(block + 1 < end, PER * padded, 0)
        s0, s1, s2, s3, z0, z1, z2, z3 = load_groups(
            scale, zero, group, padded, PER, ASYM, ASM
        )
        scales = (
            wide(t0, codes),
            wide(t1, codes),
            wide(t2, codes),
            wide(t3, codes),
        )
        zeros = (wide(u0, codes), wide(u1, codes), wide(u2, codes), wide(u3, codes))
        if ASM:
            if ASYM:
                planes = decode_asym(
                    codes,
                    scales[0],
                    scales[1],
                    scales[2],
                    scales[3],
                    zeros[0],
                    zeros[1],
                    zeros[2],
                    zeros[3],
                )
            else:
                planes = decode_sym(codes, scales[0], scales[1], scales[2], scales[3])
        for i in tl.static_range(8):
            if ASM:
                right = planes[i]
            else:
                right = plane(
                    codes, scales[i // 2], zeros[i // 2], i, x.dtype.element_ty
                )
            keep = live
            if not EVEN:
                keep = live & (block * 128 + i * 16 + j < inner)[None, :]
            left = tl.load(x_at + i * 16 + j[None, :], mask=keep, other=0.0)
            if SWAP:
                total = tl.dot(right, tl.trans(left), total)
            else:
                total = tl.dot(left, tl.trans(right), total)
        word_at += OUTER * 16
        x_at += 128
    if SWAP:
        total = tl.trans(total)
    span = rows.to(tl.int64) * outer
    at = tl.program_id(2) * span + row.to(tl.int64)[:, None] * outer + col[None, :]
    keep = live & (col < outer)[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=keep)


@triton.jit
def sum_kernel(work, y, span, parts, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Add up parts `[part, span]` in order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < span
    wait_before(PDL)
    total = tl.load(work + at, mask=keep, other=0.0)
    each = tl.zeros([], tl.int64) + span  # a span of 1 is a constant without a type
    for p in range(1, parts):
        total += tl.load(work + p * each + at, mask=keep, other=0.0)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=keep)


@triton.jit
def dequantize_kernel(
    words,
    scale,
    zero,
    y,
    inner,
    outer,
    blocks,
    padded,
    OUTER: tl.constexpr,
    GROUP: tl.constexpr,
    ASYM: tl.constexpr,
):
    """Write the weight `[out, in]` that one tile of codes stands for."""
    tile = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    j = tl.arange(0, 16)
    m = tl.arange(0, OUTER)
    col = tile * OUTER + m
    at = (tile * blocks + block) * OUTER * 16
    codes = tl.load(words + at + m[:, None] * 16 + j[None, :])
    for i in tl.static_range(8):
        k = block * 128 + i * 16
        group = (k // GROUP).to(tl.int64) * padded + col
        s = wide(tl.load(scale + group), codes)
        z = wide(load_zero(zero, group, ASYM, False), codes)
        weight = plane(codes, s, z, i, y.dtype.element_ty)
        keep = (col < outer)[:, None] & (k + j < inner)[None, :]
        tl.store(y + col[:, None] * inner + k + j[None, :], weight, mask=keep)
