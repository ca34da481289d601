"""Gates on a GPU: elementwise ones, and the delta layer's norm with its gate."""

import triton
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, power
from fspec.kernels.gate.jit import gate_kernel, norm_gate_kernel

BLOCK = 1024


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
