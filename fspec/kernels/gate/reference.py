"""What the gates are, in float64; values are rounded where the model rounds them."""

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.norm.reference import rms_norm


def sigmoid_gate(
    mixed: Float[Tensor, "r c"], gate: Float[Tensor, "r c"]
) -> Float[Tensor, "r c"]:
    """Mixed times 1 / (1 + exp(-gate)), both rounded to the gate's dtype first."""
    open_by = sigmoid(gate.double()).to(gate.dtype)
    return (mixed.to(gate.dtype).double() * open_by.double()).to(gate.dtype)


def norm_gate(
    mixed: Float[Tensor, "r h v"],
    z: Float[Tensor, "r z"],
    gain: Float[Tensor, " v"],
    eps: float,
) -> Float[Tensor, "r z"]:
    """Norm each head in z's dtype, then multiply it by silu of its part of z."""
    rows = [rms_norm(row.to(z.dtype), gain, eps).flatten() for row in mixed]
    return (torch.stack(rows).double() * silu(z.double())).to(z.dtype)


def swiglu(gate_up: Float[Tensor, "r c"]) -> Float[Tensor, "r f"]:
    """Silu of the first half of the columns, rounded, times the second half."""
    gate, up = gate_up.chunk(2, -1)
    open_by = silu(gate.double()).to(up.dtype)
    return (open_by.double() * up.double()).to(up.dtype)


def sigmoid(x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + torch.exp(-x))


def silu(x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
    """X / (1 + exp(-x))."""
    return x * sigmoid(x)


def softplus(x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
    """log(1 + exp(x)), linear above 20."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20))))
