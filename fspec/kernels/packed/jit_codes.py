"""Device code of four-bit codes: from words to bf16 weights."""

import triton
import triton.language as tl


@triton.jit
def decode_sym(words, s0, s1, s2, s3):
    """Weights of eight neighbouring inputs a word, zeros at 8 (CUDA only)."""
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
def decode_asym(words, s0, s1, s2, s3, z0, z1, z2, z3):
    """The same with zeros of their own, given as 128 + zero (CUDA only)."""
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
def plane(words, scale, zero, i: tl.constexpr, dtype):
    """Weights of one nibble of each word."""
    # an integer of four bits times a bf16 scale is exact in fp32: one rounding
    code = ((words >> (4 * i)) & 15).to(tl.float32)
    return ((code - zero) * scale.to(tl.float32)).to(dtype)


@triton.jit
def wide(x, words):
    """Give every word of an output its output's number."""
    return tl.broadcast_to(x[:, None], words.shape)


@triton.jit
def load_zero(zero, at, ASYM: tl.constexpr, ASM: tl.constexpr):
    """Load zeros of outputs as the decoding wants them."""
    if ASYM:
        z = tl.load(zero + at).to(tl.float32)
    else:
        z = tl.full(at.shape, 8.0, tl.float32)
    if ASM:
        z = (z + 128.0).to(tl.bfloat16)
    return z


@triton.jit
def load_groups(
    scale,
    zero,
    at,
    padded,
    PER: tl.constexpr,
    ASYM: tl.constexpr,
    ASM: tl.constexpr,
):
    """Load scales and zeros of a block of 128 inputs, by quarters: PER are distinct."""
    s0 = tl.load(scale + at)
    z0 = load_zero(zero, at, ASYM, ASM)
    s1, s2, s3 = s0, s0, s0
    z1, z2, z3 = z0, z0, z0
    if PER == 4:
        s1 = tl.load(scale + at + padded)
        s2 = tl.load(scale + at + 2 * padded)
        s3 = tl.load(scale + at + 3 * padded)
        z1 = load_zero(zero, at + padded, ASYM, ASM)
        z2 = load_zero(zero, at + 2 * padded, ASYM, ASM)
        z3 = load_zero(zero, at + 3 * padded, ASYM, ASM)
    return s0, s1, s2, s3, z0, z1, z2, z3
