"""Gates on a CPU, of bits that do not depend on how many rows are computed at once.

The library's `sigmoid`, `silu` and `softplus` round the last elements of a call
otherwise than those in its vector loop; these forms do not.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.norm.vector import rms_norm


def sigmoid_gate(
    mixed: Float[Tensor, "r c"], gate: Float[Tensor, "r c"]
) -> Float[Tensor, "r c"]:
    """Gate attended values by a sigmoid, in the gate's dtype."""
    return mixed.to(gate.dtype) * sigmoid(gate).to(gate.dtype)


def norm_gate(
    mixed: Float[Tensor, "r h v"],
    z: Float[Tensor, "r z"],
    gain: Float[Tensor, " v"],
    eps: float,
) -> Float[Tensor, "r z"]:
    """Norm each head of the delta rule's outputs and gate it by silu(z)."""
    normed = rms_norm(mixed.to(z.dtype), gain, eps).float()
    gated = normed * silu(z).view(normed.shape)
    return gated.to(z.dtype).flatten(1)


def swiglu(gate_up: Float[Tensor, "r c"]) -> Float[Tensor, "r f"]:
    """silu(gate) * up of a product whose first half of columns is the gate."""
    gate, up = gate_up.chunk(2, -1)
    return silu(gate).to(up.dtype) * up


def sigmoid(x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
    """1 / (1 + exp(-x)) in fp32."""
    return (1 + torch.exp(-x.float())).reciprocal()


def silu(x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
    """X / (1 + exp(-x)) in fp32."""
    wide = x.float()
    return wide / (1 + torch.exp(-wide))


def softplus(x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
    """log(1 + exp(x)), linear above 20."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20))))
