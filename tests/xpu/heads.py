"""Norm and partial rotation of query and key heads."""

import torch
from torch import Tensor

from fspec.kernels.heads import reference, triton
from fspec.types import Rotation
from tests.xpu._data import inside, random
from tests.xpu._shapes import MODELS, Sizes
from tools.xpu.memory import poisoned
from tools.xpu.spec import Case, Native, Run

ROWS, EPS = 5, 1e-6


def _rotation(rows: int, half: int) -> Rotation:
    angle = random(rows, 1, half, seed=3) * 100
    return Rotation(angle.cos(), angle.sin())


def _native(sizes: Sizes) -> Native:
    heads = sizes.heads + sizes.kv
    packed = torch.empty(8, (heads + sizes.kv) * sizes.dim, dtype=sizes.dtype)
    gain = torch.empty(heads, sizes.dim)
    by = _rotation(8, sizes.rotary // 2)
    return Native(
        f"norm and rotation, {sizes.name}",
        lambda: triton.norm_rotate(packed, gain, by, EPS),
    )


def _run(heads: int, dim: int, half: int, dtype: torch.dtype) -> Run:
    packed, gain = random(ROWS, heads * dim).to(dtype), random(heads, dim, seed=1)
    by = _rotation(ROWS, half)

    def call(first: int, last: int) -> tuple[Tensor, ...]:
        turn = Rotation(poisoned(by.cos[first:last]), poisoned(by.sin[first:last]))
        some = inside(packed[first:last], 8)
        return (triton.norm_rotate(some, poisoned(gain), turn, EPS),)

    def wanted() -> tuple[Tensor, ...]:
        return (reference.norm_rotate(packed, gain, by, EPS),)

    near = 1e-5 if dtype == torch.float32 else 2e-2
    label = f"norm and rotation, {heads} heads of {dim}, {dtype}"
    return Run(label, ROWS, call, wanted, ((0, 1), (2, 5)), rtol=near, atol=near)


CASES: list[Case] = [
    *map(_native, MODELS),
    _run(3, 24, 5, torch.float32),
    _run(2, 64, 8, torch.bfloat16),
]
