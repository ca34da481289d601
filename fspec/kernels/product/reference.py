"""What the product is: one dot product per row and output."""

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.packed import Packed, Weight
from fspec.kernels.packed.reference import dequantize


def product(x: Float[Tensor, "r i"], w: Weight) -> Float[Tensor, "r o"]:
    """Multiply each row of `x` by `w`, in float64, rounded once to `x`'s dtype."""
    dense = dequantize(w) if isinstance(w, Packed) else w
    rows = [(row.double()[:, None] * dense.double()).sum(0) for row in x]
    return torch.stack(rows).to(x.dtype)


def lone_product(x: Float[Tensor, "1 i"], w: Weight) -> Float[Tensor, "1 o"]:
    """Multiply one row: the same product."""
    return product(x, w)
