"""Device code of the gates."""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def gate_kernel(
    x, gate, out, columns, x_row, gate_row, SILU: tl.constexpr, BLOCK: tl.constexpr
):
    """`x` times the rounded activation of `gate`: its sigmoid, or its silu."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < columns
    g = tl.load(gate + row * gate_row + i, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        g = g / (1.0 + tl.exp(-g))
    else:
        g = _sigmoid(g)
    g = g.to(out.dtype.element_ty).to(tl.float32)
    a = tl.load(x + row * x_row + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + i, (a * g).to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_gate_kernel(
    x, z, gain, out, z_row, eps, DIM: tl.constexpr, BLOCK: tl.constexpr
):
    """Norm one head's output, round it, and scale it by silu(z)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < DIM
    at = (row * tl.num_programs(1) + head) * DIM + i
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(a * a, 0) / DIM + eps)
    g = tl.load(gain + i, mask=inside, other=0.0)
    normed = (a * scale * g).to(out.dtype.element_ty).to(tl.float32)
    b = tl.load(z + row * z_row + head * DIM + i, mask=inside, other=0.0)
    b = b.to(tl.float32)
    y = normed * (b / (1.0 + tl.exp(-b)))
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)
