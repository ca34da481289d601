"""SwiGLU, the attention's gate, the delta layer's norm with its gate."""

import torch
from torch import Tensor

from fspec.kernels.gate import reference, triton
from tests.xpu._data import inside, random
from tests.xpu._shapes import MODELS, Sizes
from tools.xpu.memory import poisoned
from tools.xpu.spec import Case, Native, Run

ROWS, EPS = 5, 1e-6


def _native(sizes: Sizes) -> Native:
    both = torch.empty(8, 2 * sizes.inner, dtype=sizes.dtype)
    mixed = torch.empty(8, sizes.heads * sizes.dim)
    gate = torch.empty(mixed.shape, dtype=sizes.dtype)
    outputs = torch.empty(8, sizes.value_heads, sizes.delta_dim)
    z = torch.empty(8, sizes.value_heads * sizes.delta_dim, dtype=sizes.dtype)
    gain = torch.empty(sizes.delta_dim)

    def launch() -> None:
        triton.swiglu(both)
        triton.sigmoid_gate(mixed, gate)
        triton.norm_gate(outputs, z, gain, EPS)
        triton.norm_gate(outputs.to(sizes.dtype), z, gain, EPS)

    return Native(f"gates, {sizes.name}", launch)


def _run(columns: int, heads: int, dim: int, dtype: torch.dtype) -> Run:
    both = random(ROWS, 2 * columns).to(dtype)
    mixed, gate = random(ROWS, columns, seed=1).to(dtype), both[:, :columns]
    outputs = random(ROWS, heads, dim, seed=2).to(dtype)
    z, gain = random(ROWS, heads * dim, seed=3).to(dtype), random(dim, seed=4)

    def call(first: int, last: int) -> tuple[Tensor, ...]:
        rows = slice(first, last)
        return (
            triton.swiglu(inside(both[rows], 0)),
            triton.sigmoid_gate(inside(mixed[rows], 5), inside(gate[rows], 7)),
            triton.norm_gate(
                poisoned(outputs[rows]), inside(z[rows], 9), poisoned(gain), EPS
            ),
        )

    def wanted() -> tuple[Tensor, ...]:
        return (
            reference.swiglu(both),
            reference.sigmoid_gate(mixed, gate),
            reference.norm_gate(outputs, z, gain, EPS),
        )

    near = 1e-5 if dtype == torch.float32 else 2e-2
    label = f"gates, {columns} columns, {heads} heads of {dim}, {dtype}"
    return Run(label, ROWS, call, wanted, ((0, 1), (2, 5)), rtol=near, atol=near)


CASES: list[Case] = [
    *map(_native, MODELS),
    _run(1100, 3, 24, torch.float32),
    _run(96, 2, 32, torch.bfloat16),
]
