"""Sizes of the 27B model, and random operands of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from fspec.kernels.packed import Packed

HIDDEN, VOCAB = 5120, 248_320
HEADS, KV_HEADS, DIM, ROTARY = 24, 4, 256, 64
KEYS, VALUES, KEY_DIM, VALUE_DIM, TAPS = 16, 48, 128, 128, 4
CHANNELS = 2 * KEYS * KEY_DIM + VALUES * VALUE_DIM
RAW = CHANNELS + 2 * VALUES
PAGE = 64


class Weight(NamedTuple):
    """A stacked weight: what it is, in and out."""

    name: str
    inner: int
    outer: int


ATTENTION_IN = Weight("attention in", 5120, 14_336)
DELTA_IN = Weight("delta in", 5120, 16_480)
MIXER_OUT = Weight("mixer out", 6144, 5120)
GATE_UP = Weight("gate and up", 5120, 34_816)
DOWN = Weight("down", 17_408, 5120)
HEAD = Weight("head", 5120, VOCAB)
WEIGHTS = (ATTENTION_IN, DELTA_IN, MIXER_OUT, GATE_UP, DOWN, HEAD)
# of the products of one layer
DELTA_LAYER = (DELTA_IN, MIXER_OUT, GATE_UP, DOWN)
ATTENTION_LAYER = (ATTENTION_IN, MIXER_OUT, GATE_UP, DOWN)


class Draw:
    """Random operands on a device, bf16 unless asked for otherwise."""

    def __init__(self, device: torch.device) -> None:
        """Seed the generator: every run draws the same."""
        self.device = device
        self.random = torch.Generator(device).manual_seed(0)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Draw normal numbers."""
        return torch.randn(
            *shape, device=self.device, dtype=dtype, generator=self.random
        )

    def weight(self, w: Weight) -> Tensor:
        """Draw a dense weight `[in, out]`, in memory `[out, in]`."""
        return self(w.outer, w.inner).mul_(w.inner**-0.5).t()

    def packed(self, w: Weight, group: int = 128) -> Packed:
        """Draw random codes and scales."""
        tiles, blocks = -(-w.outer // 64), -(-w.inner // 128)
        words = torch.randint(
            -(2**31),
            2**31 - 1,
            (tiles, blocks, 64, 16),
            device=self.device,
            dtype=torch.int64,
            generator=self.random,
        )
        scale = torch.rand(
            blocks * 128 // group,
            tiles * 64,
            device=self.device,
            generator=self.random,
        )
        scale = (scale * 0.01 + 0.002).bfloat16()
        return Packed(words.int(), scale, None, w.inner, w.outer, group)

    def pages(self, count: int) -> Tensor:
        """Draw a page table `[1, count]` in random order."""
        order = torch.randperm(count, device=self.device, generator=self.random)
        return order[None]
