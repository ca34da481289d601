"""RMSNorm and the residual sum before it."""

import torch
from torch import Tensor

from fspec.kernels.norm import reference, triton
from tests.xpu._data import inside, random
from tests.xpu._shapes import MODELS, Sizes
from tools.xpu.memory import poisoned
from tools.xpu.spec import Case, Native, Run

ROWS, EPS = 6, 1e-6


def _native(sizes: Sizes) -> Native:
    x = torch.empty(8, sizes.hidden, dtype=sizes.dtype)
    gain = torch.empty(sizes.hidden)

    def launch() -> None:
        triton.rms_norm(x, gain, EPS)
        triton.add_norm(x, x, gain, EPS)

    return Native(f"norms, {sizes.name}", launch)


def _run(dim: int, dtype: torch.dtype) -> Run:
    x, y = random(ROWS, dim).to(dtype), random(ROWS, dim, seed=1).to(dtype)
    gain = random(dim, seed=2)

    def call(first: int, last: int) -> tuple[Tensor, ...]:
        # rows of a wider matrix, whose other columns are poison
        some, more = inside(x[first:last], 3), inside(y[first:last], 16)
        total, normed = triton.add_norm(some, more, poisoned(gain), EPS)
        return triton.rms_norm(some, poisoned(gain), EPS), total, normed

    def wanted() -> tuple[Tensor, ...]:
        alone = reference.rms_norm(x, gain, EPS)
        return alone, *reference.add_norm(x, y, gain, EPS)

    near = 1e-5 if dtype == torch.float32 else 1e-2
    label = f"norms, {dim} wide, {dtype}"
    return Run(label, ROWS, call, wanted, ((0, 1), (2, 5)), rtol=near, atol=near)


CASES: list[Case] = [
    *map(_native, MODELS),
    _run(100, torch.float32),
    _run(1024, torch.bfloat16),
]
