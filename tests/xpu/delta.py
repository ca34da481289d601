"""The delta rule in chunks: fewer rows, more rows, and the state that is folded."""

from typing import Any

import torch
from torch import Tensor

from fspec.kernels.delta import reference, triton
from fspec.kernels.plan import plan
from fspec.types import Batch
from tests.xpu._data import random
from tests.xpu._shapes import MODELS, Sizes
from tools.xpu.memory import poison, poisoned
from tools.xpu.spec import Case, Native, Run

TAPS, CHUNK = 4, 16
ARENA = torch.empty(1, 1, 64, 1, 16)  # of attention's pages, which `plan` asks for
TABLE = torch.zeros(1, 1, dtype=torch.int32)


def _call(batch: Batch, t: int) -> Any:
    return plan(batch, t, 1, ARENA, TABLE)


def _native(sizes: Sizes) -> Native:
    heads, dim = sizes.value_heads, sizes.delta_dim
    channels = 2 * sizes.key_heads * dim + heads * dim
    width = channels + 2 * heads
    conv = torch.empty(channels, TAPS)
    state = torch.empty(1, 1, heads, dim, dim)
    held = torch.empty(1, 1, 64, width, dtype=sizes.dtype)

    # a row, a block, and more than `SHORT`; fp32 is for checking: the last will do
    counts = (1, 8, 300) if sizes.dtype == torch.bfloat16 else (300,)

    def launch() -> None:
        for count in counts:
            batch = Batch([0], [20], [count], [16], [16])
            raw = torch.empty(count, width, dtype=sizes.dtype)
            gains = torch.empty(heads), torch.empty(heads)
            triton.delta(_call(batch, count), 0, conv, *gains, raw, state, held)

    return Native(f"delta rule, {sizes.name}", launch)


class _Inputs:
    """A request whose held rows end, and whose new rows begin, where a call wants."""

    def __init__(self, keys: int, heads: int, dim: int, dtype: torch.dtype) -> None:
        channels = (2 * keys + heads) * dim
        self.start, self.length, self.rows = CHUNK, CHUNK + 12, 9
        width = channels + 2 * heads
        every = TAPS - 1 + self.length - self.start + self.rows
        self.raw = random(every, width).to(dtype)
        self.conv = random(channels, TAPS, seed=1)
        self.speed, self.bias = -random(heads, seed=2).abs(), random(heads, seed=3)
        self.state = random(1, 2, heads, dim, dim, seed=4)

    def arguments(self, first: int, last: int, edge: int) -> tuple[Batch, list[Tensor]]:
        length = self.length + first
        held = TAPS - 1 + length - self.start
        rows = torch.full((1, 2, 40, self.raw.shape[1]), poison(self.raw.dtype))
        rows[0, 1, :held] = self.raw[:held].float()
        new = self.raw[held : held + last - first]
        batch = Batch([1], [length], [last - first], [edge], [self.start])
        return batch, [
            poisoned(self.conv),
            poisoned(self.speed),
            poisoned(self.bias),
            poisoned(new),
            poisoned(self.state),
            rows.to(self.raw.dtype),
        ]

    def call(self, first: int, last: int, edge: int) -> tuple[Tensor, list[Tensor]]:
        batch, given = self.arguments(first, last, edge)
        return triton.delta(_call(batch, last - first), 0, *given)

    def wanted(self, edge: int) -> tuple[Tensor, list[Tensor]]:
        batch, given = self.arguments(0, self.rows, edge)
        return reference.delta(batch, 0, *given)


def _runs(keys: int, heads: int, dim: int, dtype: torch.dtype) -> list[Run]:
    given = _Inputs(keys, heads, dim, dtype)
    fp32 = dtype == torch.float32
    rtol, atol = (1e-4, 1e-4) if fp32 else (2e-2, 5e-2)
    label, fold = f"{keys} and {heads} heads of {dim}, {dtype}", 2 * CHUNK
    return [
        Run(
            f"delta rule, {label}",
            given.rows,
            lambda first, last: (given.call(first, last, CHUNK)[0],),
            lambda: (given.wanted(CHUNK)[0],),
            ((0, 1), (1, 9)),  # row 4 on stand in the next chunk
            rtol=rtol,
            atol=atol,
        ),
        Run(
            f"state of the delta rule, {label}",
            given.rows,
            lambda first, last: tuple(given.call(first, last, fold)[1]),
            lambda: tuple(given.wanted(fold)[1]),
            rtol=rtol,
            atol=atol,
        ),
    ]


CASES: list[Case] = [
    *map(_native, MODELS),
    *_runs(1, 2, 24, torch.float32),
    *_runs(1, 2, 32, torch.bfloat16),
]
