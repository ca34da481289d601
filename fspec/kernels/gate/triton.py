"""Gates on a GPU: elementwise, and the delta layer's norm of each head with its gate."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, power

BLOCK = 1024


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


def _gate(x: Tensor, gate: Tensor, silu: bool) -> Tensor:
    rows, columns = x.shape
    out = gate.new_empty(rows, columns)
    gate_kernel[(rows, triton.cdiv(columns, BLOCK))](
        x,
        gate,
        out,
        columns,
        x.stride(0),
        gate.stride(0),
        SILU=silu,
        BLOCK=BLOCK,
        **Launch()._asdict(),
    )
    return out


def sigmoid_gate(
    mixed: Float[Tensor, "r c"], gate: Float[Tensor, "r c"]
) -> Float[Tensor, "r c"]:
    """Gate attended values; bytes: two in, one out."""
    return _gate(mixed, gate, silu=False)


def swiglu(gate_up: Float[Tensor, "r two_f"]) -> Float[Tensor, "r f"]:
    """silu(gate) * up; bytes: two in, one out."""
    gate, up = gate_up.chunk(2, -1)
    return _gate(up, gate, silu=True)


def norm_gate(
    mixed: Float[Tensor, "r h v"],
    z: Float[Tensor, "r z"],
    gain: Float[Tensor, " v"],
    eps: float,
) -> Float[Tensor, "r z"]:
    """Norm and gate a delta layer's outputs; bytes: two in, one out."""
    rows, heads, dim = mixed.shape
    out = z.new_empty(rows, heads * dim)
    norm_gate_kernel[(rows, heads)](
        mixed.contiguous(),
        z,
        gain,
        out,
        z.stride(0),
        eps,
        DIM=dim,
        BLOCK=power(dim),
        **Launch(num_warps=1)._asdict(),
    )
    return out
