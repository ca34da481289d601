"""What the norms are: each row by itself, in float64."""

import torch
from jaxtyping import Float
from torch import Tensor


def rms_norm(
    x: Float[Tensor, "r d"], gain: Float[Tensor, " d"], eps: float
) -> Float[Tensor, "r d"]:
    """Divide each row by its root mean square, times `gain`; rounded once."""
    rows = [row / ((row * row).mean() + eps).sqrt() * gain for row in x.double()]
    return torch.stack(rows).to(x.dtype)


def add_norm(
    x: Float[Tensor, "r d"],
    y: Float[Tensor, "r d"],
    gain: Float[Tensor, " d"],
    eps: float,
) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r d"]]:
    """Sum two rows, rounded to their dtype, and norm what that gives."""
    total = (x.double() + y.double()).to(x.dtype)
    return total, rms_norm(total, gain, eps)


def l2_norm(x: Float[Tensor, "r k"]) -> Float[Tensor, "r k"]:
    """Divide each row by its length; the epsilon 1e-6 stands inside the root."""
    rows = [row / ((row * row).sum() + 1e-6).sqrt() for row in x.double()]
    return torch.stack(rows).to(x.dtype)
