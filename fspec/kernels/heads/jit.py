"""Device code of the norm and rotation of heads."""

import triton
import triton.language as tl


@triton.jit
def _normed(x, gain, at, inside, scale, dtype):
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gain + at, mask=inside, other=0.0)
    return (a * scale * g).to(dtype).to(tl.float32)


@triton.jit
def heads_kernel(
    x,
    gain,
    cos,
    sin,
    out,
    x_row,
    eps,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Norm a head, round it, then turn its pairs (i, i + HALF)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < DIM
    x += row * x_row + head * DIM
    gain += head * DIM
    a = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(a * a, 0) / DIM + eps)
    mine = _normed(x, gain, i, inside, scale, out.dtype.element_ty)
    turned = i < 2 * HALF
    other = tl.where(i < HALF, i + HALF, i - HALF)
    theirs = _normed(x, gain, other, turned, scale, out.dtype.element_ty)
    angle = row * HALF + i % HALF
    c = tl.load(cos + angle, mask=turned, other=1.0)
    s = tl.load(sin + angle, mask=turned, other=0.0)
    first = mine * c - theirs * s
    second = mine * c + theirs * s
    y = tl.where(i < HALF, first, tl.where(turned, second, mine))
    at = (row * tl.num_programs(1) + head) * DIM + i
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)
