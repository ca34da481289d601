"""What head norm and rotation are: one head at a time, in float64."""

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.norm.reference import rms_norm
from fspec.types import Rotation


def norm_rotate(
    packed: Float[Tensor, "r p"],
    gain: Float[Tensor, "h k"],
    by: Rotation,
    eps: float,
) -> Float[Tensor, "r h k"]:
    """Norm each head by its own gain, round, then turn its rotary pairs, and round.

    Pair `i` is dims `i` and `i + half` of the first `2 * half`; the other dims pass
    through.
    """
    heads, dim = gain.shape
    half = by.cos.shape[-1]
    out = packed.new_empty(len(packed), heads, dim)
    for r, row in enumerate(packed):
        cos, sin = by.cos[r, 0].double(), by.sin[r, 0].double()
        for h in range(heads):
            x = row[h * dim : (h + 1) * dim][None]
            x = rms_norm(x, gain[h], eps)[0].double()
            a, b = x[:half], x[half : 2 * half]
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin, x[2 * half :]])
            out[r, h] = turned.to(packed.dtype)
    return out
