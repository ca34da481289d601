"""Packed weights on a CPU: made from dense ones, and turned back to them."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fspec.kernels.packed.layout import MIDDLE, NIBBLES, Packed, check_group, pack


def dequantize(packed: Packed) -> Float[Tensor, "i o"]:
    """Compute the dense weight `(code - zero) * scale` in the scales' dtype.

    Returns:
        `[in, out]`, a view of rows `[out, in]`: what a GPU's product reads.
    """
    words, scale = packed.words, packed.scale
    shift = 4 * torch.arange(NIBBLES, device=words.device, dtype=torch.int32)
    codes = (words[:, :, :, None] >> shift[:, None]) & 15
    codes = codes.permute(0, 2, 1, 3, 4).reshape(scale.shape[1], -1, packed.group)
    zero = MIDDLE if packed.zero is None else packed.zero.t()[..., None]
    # the difference is a small integer, so that the product rounds once
    weight = (codes - zero).to(scale.dtype) * scale.t()[..., None]
    return weight.flatten(1)[: packed.outer, : packed.inner].contiguous().t()


def quantize(weight: Float[Tensor, "i o"], group: int, symmetric: bool) -> Packed:
    """Round a dense weight to the nearest codes.

    Args:
        weight: its dtype is that of the scales.
        group: inputs that share a scale; the last group may be short.
        symmetric: scales alone, the greatest magnitude of a group at 7.5 steps; else
            scales and zeros, so that its range, 0 included, is 15 steps.

    Raises:
        ShapeError: fspec does not run that group.
    """
    check_group(group)
    rows = weight.t().float()
    outer, inner = rows.shape
    groups = F.pad(rows, (0, -inner % group)).view(outer, -1, group)
    if symmetric:
        low, steps = torch.zeros_like(groups[..., 0]), 7.5
        high = groups.abs().amax(-1)
    else:
        low, steps = groups.amin(-1).clamp(max=0), 15
        high = groups.amax(-1).clamp(min=0)
    scale = ((high - low) / steps).to(weight.dtype)
    step = torch.where(scale == 0, 1, scale.float())
    zero = None if symmetric else (-low / step).round().clamp(0, 15)
    middle = MIDDLE if zero is None else zero[..., None]
    codes = (groups / step[..., None]).round() + middle
    codes = codes.clamp(0, 15).flatten(1)[:, :inner].int()
    return pack(codes, scale, None if zero is None else zero.int(), group)
