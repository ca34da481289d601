"""Inputs for the tables."""

import torch
from torch import Tensor

from tools.xpu.memory import poisoned


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same for a seed everywhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inside(x: Tensor, more: int) -> Tensor:
    """Copy `x` into the first columns of a wider matrix; the others are poison."""
    wide = poisoned(torch.full((x.shape[0], x.shape[1] + more), torch.nan)).to(x.dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]
