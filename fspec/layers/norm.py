"""RMS normalisation."""

import torch
from jaxtyping import Float
from torch import Tensor


def rms_norm(
    x: Float[Tensor, "*r d"], gain: Float[Tensor, "*h d"], eps: float
) -> Float[Tensor, "*r d"]:
    """Scale `x` to unit root mean square times `gain`, in fp32 with one cast.

    `gain` is the effective gain: `1 + w` for the zero-centred norms of the checkpoint;
    one for all rows, or one for each head.
    """
    wide = x.float()
    square = (wide * wide).sum(-1, keepdim=True)
    scale = torch.rsqrt(square / x.shape[-1] + eps)
    return (wide * scale * gain).to(x.dtype)


def l2_norm(x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r k"]:
    """Scale `x` to unit length; the epsilon 1e-6 stands inside the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
