"""The SwiGLU feed-forward layer."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fspec.kernels.product import product
from fspec.layers.gates import silu


class MlpParams(NamedTuple):
    """`gate_up` is `[d, 2 f]`, the gate's columns first; `down` is `[f, d]`."""

    gate_up: Tensor
    down: Tensor


def mlp(params: MlpParams, x: Float[Tensor, "r d"]) -> Float[Tensor, "r d"]:
    """down(silu(gate x) * up x)."""
    gate, up = product(x, params.gate_up).chunk(2, -1)
    return product(silu(gate).to(x.dtype) * up, params.down)
