"""The dense product: one order of the sum, whatever tile the number of rows takes."""

import torch
from torch import Tensor

from fspec.kernels.product import reference, triton
from tests.xpu._data import inside, random
from tests.xpu._shapes import MODELS, Sizes
from tools.xpu.memory import poisoned
from tools.xpu.spec import Case, Native, Run

COUNTS = (1, 8, 16, 128)  # decode, verify, several requests, prefill


def _weights(sizes: Sizes) -> list[Tensor]:
    """Every weight of a layer and the head; `[in, out]`, in memory `[out, in]`."""
    mixed = sizes.heads * sizes.dim
    values = sizes.value_heads * sizes.delta_dim
    keys = sizes.key_heads * sizes.delta_dim
    shapes = [
        (2 * mixed + 2 * sizes.kv * sizes.dim, sizes.hidden),
        (sizes.hidden, mixed),
        (2 * keys + 2 * values + 2 * sizes.value_heads, sizes.hidden),
        (sizes.hidden, values),
        (2 * sizes.inner, sizes.hidden),
        (sizes.hidden, sizes.inner),
        (sizes.vocab, sizes.hidden),
    ]
    return [torch.empty(shape, dtype=sizes.dtype).t() for shape in shapes]


def _native(sizes: Sizes) -> Native:
    weights = _weights(sizes)

    def launch() -> None:
        for w in weights:
            for rows in COUNTS:
                triton.product(torch.empty(rows, len(w), dtype=sizes.dtype), w)

    half = sizes.dtype == torch.bfloat16
    return Native(f"products, {sizes.name}", launch, dpas=half)


def _run(inner: int, outer: int, dtype: torch.dtype) -> Run:
    rows = 40
    x, w = random(rows, inner).to(dtype), random(outer, inner, seed=1).to(dtype)

    def call(first: int, last: int) -> tuple[Tensor, ...]:
        return (triton.product(inside(x[first:last], 8), poisoned(w).t()),)

    half = dtype == torch.bfloat16
    return Run(
        f"product, {inner} to {outer}, {dtype}",
        rows,
        call,
        lambda: (reference.product(x, w.t()),),
        ((0, 1), (5, 13), (7, 23)),  # each takes another tile than all rows
        rtol=1e-2 if half else 1e-5,
        atol=1e-2 if half else 1e-4,
    )


CASES: list[Case] = [
    *map(_native, MODELS),
    _run(200, 70, torch.bfloat16),
    _run(100, 70, torch.float32),
]
