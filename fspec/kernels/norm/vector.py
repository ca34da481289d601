"""RMS normalisation on a CPU."""

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
    if x.dtype != torch.float32:
        return rms_norm(x.float(), gain, eps).to(x.dtype)
    if gain.dim() == 1:
        return torch.rms_norm(x, gain.shape, gain, eps)
    return torch.rms_norm(x, x.shape[-1:], None, eps) * gain


def add_norm(
    x: Float[Tensor, "r d"],
    y: Float[Tensor, "r d"],
    gain: Float[Tensor, " d"],
    eps: float,
) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r d"]]:
    """Add to the residual stream and norm the sum, which is rounded first.

    Returns:
        The sum in `x`'s dtype, and `rms_norm` of it.
    """
    total = x + y
    return total, rms_norm(total, gain, eps)


def l2_norm(x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r k"]:
    """Scale `x` to unit length; the epsilon 1e-6 stands inside the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
