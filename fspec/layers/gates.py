"""Activations whose bits do not depend on how many rows are computed at once.

The library's `sigmoid`, `silu` and `softplus` round the last elements of a call
otherwise than those in its vector loop; these forms do not.
"""

import torch
from jaxtyping import Float
from torch import Tensor


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
