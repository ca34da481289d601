"""Sizes of the two models whose launches are compiled: Qwen3.x 27B and the toy."""

from typing import NamedTuple

import torch


class Sizes(NamedTuple):
    """What a model's launches depend on."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv: int
    dim: int
    rotary: int
    key_heads: int
    value_heads: int
    delta_dim: int
    vocab: int
    dtype: torch.dtype


B27 = Sizes("27B", 5120, 17408, 24, 4, 256, 64, 16, 48, 128, 248320, torch.bfloat16)
B27_32 = B27._replace(name="27B fp32", dtype=torch.float32)
TINY = Sizes("tiny", 256, 768, 4, 2, 64, 16, 4, 8, 32, 4096, torch.bfloat16)
TINY32 = TINY._replace(name="tiny fp32", dtype=torch.float32)
MODELS = (B27, B27_32, TINY, TINY32)
