"""Paged attention: rows that are verified together or one by one, as decoding does."""

from itertools import product

import torch
from torch import Tensor

from fspec.kernels.attention import reference, triton
from fspec.kernels.plan import plan
from fspec.types import Batch
from tests.xpu._data import random
from tests.xpu._shapes import MODELS, Sizes
from tools.xpu.memory import poison, poisoned
from tools.xpu.spec import Case, Native, Run

PAGES = (64, 16)


def _batch(length: int, count: int) -> Batch:
    return Batch([0], [length], [count], [0], [0])


def _native(sizes: Sizes) -> Native:
    table = torch.zeros(1, 64, dtype=torch.int32)

    def launch() -> None:
        for page, count in product(PAGES, (1, 8, 64)):
            keys = torch.empty(1, 64, page, sizes.kv, sizes.dim, dtype=sizes.dtype)
            batch = _batch(1000, count)
            q = torch.empty(count, sizes.heads, sizes.dim, dtype=sizes.dtype)
            k = torch.empty(count, sizes.kv, sizes.dim, dtype=sizes.dtype)
            call = plan(batch, count, sizes.heads, keys, table)
            triton.attend(call, 0, q, k, k, keys, keys, table)

    return Native(f"attention, {sizes.name}", launch)


def _arena(rows: Tensor, table: Tensor, length: int, size: int) -> Tensor:
    """Two layers of pages; layer 1 holds `rows` below `length`, all else is poison."""
    pages = int(table.max()) + 2
    arena = torch.full((2, pages, size, *rows.shape[1:]), poison(rows.dtype))
    at = torch.arange(length)
    arena[1, table[0, at // size].long(), at % size] = rows[:length].float()
    return arena.to(rows.dtype)


def _run(heads: int, kv: int, dim: int, size: int, dtype: torch.dtype) -> Run:
    start, rows = 61, 8  # a tile's edge and a page's edge inside the block
    k, v = (random(start + rows, kv, dim, seed=s).to(dtype) for s in (1, 2))
    q = random(rows, heads, dim).to(dtype)
    table = (torch.arange(-(-start // size) + 1).flip(0) + 1)[None].int()

    def inputs(first: int, last: int) -> list[Tensor]:
        length = start + first
        new = slice(length, start + last)
        parts = [poisoned(x) for x in (q[first:last], k[new], v[new])]
        arenas = [_arena(x, table, length, size) for x in (k, v)]
        return [*parts, *arenas, poisoned(table)]

    def call(first: int, last: int) -> tuple[Tensor, ...]:
        given, count = inputs(first, last), last - first
        layout = plan(_batch(start + first, count), count, heads, given[3], table)
        return (triton.attend(layout, 1, *given),)

    def wanted() -> tuple[Tensor, ...]:
        return (reference.attend(_batch(start, rows), 1, *inputs(0, rows)),)

    near = 1e-5 if dtype == torch.float32 else 2e-2
    label = f"attention, {heads} heads of {dim}, {kv} kv, pages of {size}, {dtype}"
    return Run(
        label, rows, call, wanted, ((0, 1), (4, 5), (2, 8)), rtol=near, atol=near
    )


CASES: list[Case] = [
    *map(_native, MODELS),
    _run(4, 2, 24, 16, torch.float32),
    _run(4, 2, 24, 16, torch.bfloat16),
    _run(6, 1, 64, 64, torch.bfloat16),
]
