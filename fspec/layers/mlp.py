"""The SwiGLU feed-forward layer."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fspec.kernels import Kernels
from fspec.kernels.packed import Weight


class MlpParams(NamedTuple):
    """`gate_up` is `[d, 2 f]`, the gate's columns first; `down` is `[f, d]`."""

    gate_up: Weight
    down: Weight


def mlp(
    ops: Kernels, params: MlpParams, x: Float[Tensor, "r d"]
) -> Float[Tensor, "r d"]:
    """down(silu(gate x) * up x)."""
    return ops.product(ops.swiglu(ops.product(x, params.gate_up)), params.down)
