"""Addresses past 2 ** 31 elements: the last rows of big tensors, compared alone."""

import pytest
import torch
from torch import Tensor

from fspec.types import Batch
from tests.kernels.triton_cases import same

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PAST = 1 << 31


@pytest.fixture
def ops():
    from fspec.kernels import kernels_on

    yield kernels_on("cuda")
    torch.cuda.empty_cache()


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    random = torch.Generator("cuda").manual_seed(0)
    return torch.randn(*shape, device="cuda", dtype=dtype, generator=random)


def test_product_rows(ops):
    rows = PAST // 5120 + 9
    x, w = draw(rows, 5120), draw(16, 5120).t()
    full = ops.product(x, w)
    same(ops.product(x[-3:], w), full[-3:])


def test_product_outputs(ops):
    rows = PAST // 16_384 + 9
    x, w = draw(rows, 32), draw(16_384, 32).t()
    full = ops.product(x, w)
    same(ops.product(x[-3:], w), full[-3:])


def test_weight(ops):
    outer = PAST // 8192 + 130
    x, w = draw(3, 8192), draw(outer, 8192)
    full = ops.product(x, w.t())
    same(ops.product(x, w[-64:].t()), full[:, -64:])
    ids = ops.argmax(x, w.t())
    same(full.gather(1, ids[:, None])[:, 0], full.amax(1))


def test_norm_and_gates(ops):
    rows = PAST // 8192 + 9
    x, gain = draw(rows, 8192), torch.ones(8192, device="cuda")
    same(ops.rms_norm(x[-2:], gain, 1e-6), ops.rms_norm(x, gain, 1e-6)[-2:])
    same(ops.swiglu(x[-2:]), ops.swiglu(x)[-2:])


@pytest.mark.parametrize("size", [64, 100])
def test_attention_pages(ops, size):
    # the last pages of an arena of more than 2 ** 31 elements, in its second layer
    kv, dim, heads, length = 4, 256, 24, 3 * size
    pages = PAST // (size * kv * dim) + 8
    arenas = [
        torch.full((2, pages, size, kv, dim), torch.nan).to("cuda", torch.bfloat16)
    ]
    arenas.append(arenas[0].clone())
    q, k, v = draw(8, heads, dim), draw(8, kv, dim), draw(8, kv, dim)
    out = []
    for first in (1, pages - 4):
        table = torch.arange(first, first + 4, device="cuda")[None]
        for i, arena in enumerate(arenas):
            arena[1, first : first + 3] = draw(3, size, kv, dim) * (i + 1)
        plan = ops.plan(Batch([0], [length], [8], [0], [0]), 8, heads, arenas[0], table)
        out.append(ops.attend(plan, 1, q, k, v, *arenas, table))
    same(*out)


def test_delta_slots(ops):
    # the last slot of states and raw rows of more than 2 ** 31 elements
    keys, values, dim, held = 16, 48, 128, 60
    wide = (2 * keys + values) * dim + 2 * values
    slots = max(PAST // (values * dim * dim), PAST // (held * wide)) + 2
    fp32 = torch.float32
    s = torch.zeros(1, slots, values, dim, dim, device="cuda")
    rows = torch.zeros(1, slots, held, wide, device="cuda", dtype=torch.bfloat16)
    weights = (
        draw((2 * keys + values) * dim, 4, dtype=fp32),
        -draw(values, dtype=fp32).abs(),
        draw(values, dtype=fp32),
    )
    raw, out = draw(8, wide), []
    arena = draw(1, 1, 64, 1, 16)
    for slot in (0, slots - 1):
        s[0, slot], rows[0, slot] = draw(values, dim, dim, dtype=fp32), draw(held, wide)
        plan = ops.plan(Batch([slot], [28], [8], [32], [16]), 8, 1, arena, arena)
        mixed, ends = ops.delta(plan, 0, *weights, raw, s, rows)
        out.append((mixed, ends[0]))
    same(out[0][0], out[1][0])
    same(out[0][1], out[1][1])
