"""Device code of the W4A16 product: codes to bf16, the product, the sum of parts."""

import triton
import triton.language as tl

from fspec.kernels.jit import release_next, wait_before


@triton.jit
def _decode_sym(words, s0, s1, s2, s3):
    # 0x43 above a nibble is 128 + q in bf16; two neighbouring words at a time
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 lo, hi, t, c;
        mov.b32 c, 0x43084308;
        prmt.b32 lo, $8, $9, 0x5410;
        prmt.b32 hi, $8, $9, 0x7632;
        lop3.b32 t, lo, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, c;
        mul.rn.bf16x2 $0, t, $10;
        shr.u32 t, lo, 4;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, c;
        mul.rn.bf16x2 $1, t, $10;
        shr.u32 t, lo, 8;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, c;
        mul.rn.bf16x2 $2, t, $11;
        shr.u32 t, lo, 12;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, c;
        mul.rn.bf16x2 $3, t, $11;
        lop3.b32 t, hi, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, c;
        mul.rn.bf16x2 $4, t, $12;
        shr.u32 t, hi, 4;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, c;
        mul.rn.bf16x2 $5, t, $12;
        shr.u32 t, hi, 8;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, c;
        mul.rn.bf16x2 $6, t, $13;
        shr.u32 t, hi, 12;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, c;
        mul.rn.bf16x2 $7, t, $13;
        }
        """,
        "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r,r",
        [words, s0, s1, s2, s3],
        dtype=(
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
        ),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _decode_asym(words, s0, s1, s2, s3, z0, z1, z2, z3):
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 lo, hi, t;
        prmt.b32 lo, $8, $9, 0x5410;
        prmt.b32 hi, $8, $9, 0x7632;
        lop3.b32 t, lo, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, $14;
        mul.rn.bf16x2 $0, t, $10;
        shr.u32 t, lo, 4;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, $14;
        mul.rn.bf16x2 $1, t, $10;
        shr.u32 t, lo, 8;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, $15;
        mul.rn.bf16x2 $2, t, $11;
        shr.u32 t, lo, 12;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, $15;
        mul.rn.bf16x2 $3, t, $11;
        lop3.b32 t, hi, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, $16;
        mul.rn.bf16x2 $4, t, $12;
        shr.u32 t, hi, 4;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, $16;
        mul.rn.bf16x2 $5, t, $12;
        shr.u32 t, hi, 8;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, $17;
        mul.rn.bf16x2 $6, t, $13;
        shr.u32 t, hi, 12;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, $17;
        mul.rn.bf16x2 $7, t, $13;
        }
        """,
        "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r",
        [words, s0, s1, s2, s3, z0, z1, z2, z3],
        dtype=(
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
        ),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _plane(words, scale, zero, i: tl.constexpr, dtype):
    # an integer of four bits times a bf16 scale is exact in fp32: one rounding
    code = ((words >> (4 * i)) & 15).to(tl.float32)
    return ((code - zero) * scale.to(tl.float32)).to(dtype)


@triton.jit
def _wide(x, words):
    return tl.broadcast_to(x[:, None], words.shape)


@triton.jit
def _load_zero(zero, at, ASYM: tl.constexpr, ASM: tl.constexpr):
    if ASYM:
        z = tl.load(zero + at).to(tl.float32)
    else:
        z = tl.full(at.shape, 8.0, tl.float32)
    if ASM:
        z = (z + 128.0).to(tl.bfloat16)
    return z


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
    s0 = tl.load(scale + group)
    s1, s2, s3 = s0, s0, s0
    z0 = _load_zero(zero, group, ASYM, ASM)
    z1, z2, z3 = z0, z0, z0
    if PER == 4:
        s1 = tl.load(scale + group + padded)
        s2 = tl.load(scale + group + 2 * padded)
        s3 = tl.load(scale + group + 3 * padded)
        z1 = _load_zero(zero, group + padded, ASYM, ASM)
        z2 = _load_zero(zero, group + 2 * padded, ASYM, ASM)
        z3 = _load_zero(zero, group + 3 * padded, ASYM, ASM)
    for block in range(first, end):
        codes = tl.load(word_at)
        t0, t1, t2, t3 = s0, s1, s2, s3
        u0, u1, u2, u3 = z0, z1, z2, z3
        group += tl.where(block + 1 < end, PER * padded, 0)
        s0 = tl.load(scale + group)
        s1, s2, s3 = s0, s0, s0
        if ASYM:
            z0 = _load_zero(zero, group, ASYM, ASM)
            z1, z2, z3 = z0, z0, z0
        if PER == 4:
            s1 = tl.load(scale + group + padded)
            s2 = tl.load(scale + group + 2 * padded)
            s3 = tl.load(scale + group + 3 * padded)
            if ASYM:
                z1 = _load_zero(zero, group + padded, ASYM, ASM)
                z2 = _load_zero(zero, group + 2 * padded, ASYM, ASM)
                z3 = _load_zero(zero, group + 3 * padded, ASYM, ASM)
        scales = (
            _wide(t0, codes),
            _wide(t1, codes),
            _wide(t2, codes),
            _wide(t3, codes),
        )
        zeros = (_wide(u0, codes), _wide(u1, codes), _wide(u2, codes), _wide(u3, codes))
        if ASM:
            if ASYM:
                planes = _decode_asym(
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
                planes = _decode_sym(codes, scales[0], scales[1], scales[2], scales[3])
        for i in tl.static_range(8):
            if ASM:
                right = planes[i]
            else:
                right = _plane(
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
    for p in range(1, parts):
        total += tl.load(work + p * span.to(tl.int64) + at, mask=keep, other=0.0)
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
        s = _wide(tl.load(scale + group), codes)
        z = _wide(_load_zero(zero, group, ASYM, False), codes)
        weight = _plane(codes, s, z, i, y.dtype.element_ty)
        keep = (col < outer)[:, None] & (k + j < inner)[None, :]
        tl.store(y + col[:, None] * inner + k + j[None, :], weight, mask=keep)
