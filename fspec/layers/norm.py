"""RMS normalisation."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def rms_norm(
    x: Float[Tensor, "*r d"], gain: Float[Tensor, "*h d"], eps: float
) -> Float[Tensor, "*r d"]:
    """Scale `x` to unit root mean square times `gain`, in fp32 with one cast.

    `gain` is the effective gain: `1 + w` for the zero-centred norms of the checkpoint;
    one for all rows, or one for each head.
    """
    return (F.rms_norm(x.float(), x.shape[-1:], None, eps) * gain).to(x.dtype)


def l2_norm(x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r k"]:
    """Scale `x` to unit length; the epsilon 1e-6 stands inside the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
