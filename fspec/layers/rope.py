"""Rotary position embedding of the first dims of a head."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Rotation(NamedTuple):
    """fp32 cos and sin of every row's angles, `[row, 1, rotary dims / 2]`."""

    cos: Tensor
    sin: Tensor


def rotation(
    inv_freq: Float[Tensor, " f"], scale: float, positions: Int[Tensor, " r"]
) -> Rotation:
    """Build the rotation for rows at absolute `positions`.

    Angles are fp32 products, as in the models' training code: at a position near
    1,048,576 that rounds an angle by up to 0.06 rad, and a more exact product would be
    another model. `scale` is YaRN's attention factor; it multiplies cos and sin, so
    only the rotary dims of q and k are scaled.
    """
    angle = positions.float()[:, None, None] * inv_freq
    return Rotation(angle.cos() * scale, angle.sin() * scale)


def rotate(x: Float[Tensor, "r h k"], by: Rotation) -> Float[Tensor, "r h k"]:
    """Rotate pairs (i, i + half) inside the rotary dims; the rest passes through."""
    half = by.cos.shape[-1]
    sizes = [half, half, x.shape[-1] - 2 * half]
    first, second, rest = x.split_with_sizes(sizes, -1)
    a, b = first.float(), second.float()
    turned = a * by.cos - b * by.sin, b * by.cos + a * by.sin
    return torch.cat([part.to(x.dtype) for part in (*turned, rest)], -1)
