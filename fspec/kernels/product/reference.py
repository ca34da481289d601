"""What the dense product is: one dot product per row and output."""

import torch
from jaxtyping import Float
from torch import Tensor


def product(x: Float[Tensor, "r i"], w: Float[Tensor, "o i"]) -> Float[Tensor, "r o"]:
    """Multiply each row of `x` by `wᵀ`, in float64, rounded once to `x`'s dtype."""
    rows = [(row.double() * w.double()).sum(-1) for row in x]
    return torch.stack(rows).to(x.dtype)
