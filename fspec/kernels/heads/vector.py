"""Norm and partial rotation of heads on a CPU."""

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.norm.vector import rms_norm
from fspec.types import Rotation


def norm_rotate(
    packed: Float[Tensor, "r p"],
    gain: Float[Tensor, "h k"],
    by: Rotation,
    eps: float,
) -> Float[Tensor, "r h k"]:
    """Norm every head of every row and rotate it to the row's position.

    Args:
        packed: heads side by side in the first `h * k` columns; others are not read.
        gain: effective gain of each head.
        by: cos and sin of each row's angles; dims past theirs pass through.
        eps: of the norm.
    """
    width = gain.numel()
    if packed.shape[1] != width:
        packed = packed[:, :width]
    heads = packed.view(-1, *gain.shape)
    return rotate(rms_norm(heads, gain, eps), by)


def rotate(x: Float[Tensor, "r h k"], by: Rotation) -> Float[Tensor, "r h k"]:
    """Rotate pairs (i, i + half) inside the rotary dims; the rest passes through."""
    half = by.cos.shape[-1]
    sizes = [half, half, x.shape[-1] - 2 * half]
    first, second, rest = x.split_with_sizes(sizes, -1)
    a, b = first.float(), second.float()
    turned = a * by.cos - b * by.sin, b * by.cos + a * by.sin
    return torch.cat([part.to(x.dtype) for part in (*turned, rest)], -1)
