"""The heavy kernels against their references: odd shapes, rows alone and together."""

import pytest
import torch

from fspec.kernels import attention, delta, product
from fspec.kernels.attention import reference as attention_reference
from fspec.kernels.delta import reference as delta_reference
from fspec.kernels.product import reference as product_reference
from tests.kernels.data import random


@pytest.mark.parametrize(
    ("rows", "inner", "outer"), [(1, 3, 5), (9, 41, 7), (17, 64, 1), (16, 34, 100)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product(rows: int, inner: int, outer: int, dtype: torch.dtype):
    x, w = random(rows, inner).to(dtype), random(inner, outer, seed=1).to(dtype)
    found = product.product(x, w)
    wanted = product_reference.product(x, w)
    rtol = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-5)
    for row in range(rows):
        one = x[row : row + 1]
        assert torch.equal(product.product(one, w)[0], found[row])
        lone = product.lone_product(one, w)
        wanted_lone = product_reference.lone_product(one, w)
        torch.testing.assert_close(lone, wanted_lone, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("outer", [1, 5, 7, 8, 9, 16, 24])
def test_product_of_misaligned_rows(outer: int):
    w = random(33, outer, seed=1)
    x = random(8, 33)
    for offset in (1, 2, 3, 5):
        shifted = torch.cat([torch.zeros(offset), x.flatten()])[offset:].view(8, 33)
        assert torch.equal(product.product(shifted, w), product.product(x, w))


def test_product_takes_a_slice_of_a_weight():
    x, w = random(3, 40), random(40, 90, seed=1)
    wanted = product_reference.product(x, w[:, 20:60])
    torch.testing.assert_close(product.product(x, w[:, 20:60]), wanted)


@pytest.mark.parametrize(("heads", "kv"), [(1, 1), (6, 2), (4, 4)])
@pytest.mark.parametrize("page", [1, 16, 64, 100])
@pytest.mark.parametrize(
    ("start", "count"), [(0, 1), (0, 65), (63, 2), (64, 8), (130, 17)]
)
def test_attention(heads: int, kv: int, page: int, start: int, count: int):
    # pages in any order, NaN in every row that is not committed
    dim, end = 24, start + count
    k, v, q = (
        random(end, kv, dim),
        random(end, kv, dim, seed=1),
        random(count, heads, dim),
    )
    pages = -(-end // page)
    table = torch.arange(pages).flip(0) + 2
    arenas = [torch.full((pages + 2, page, kv, dim), torch.nan) for _ in "kv"]
    for arena, rows in zip(arenas, (k, v), strict=True):
        at = torch.arange(start)
        arena[table[at // page], at % page] = rows[:start]

    def run(first: int, last: int) -> torch.Tensor:
        at = torch.arange(start, first)
        for arena, rows in zip(arenas, (k, v), strict=True):
            arena[table[at // page], at % page] = rows[start:first]
        tiles = [
            attention.gather_tiles(arena, table, first, rows[first:last])
            for arena, rows in zip(arenas, (k, v), strict=True)
        ]
        part = q[first - start : last - start]
        flat = [rows.flatten(0, 1) for rows in tiles]
        wanted = attention_reference.attend_rows(part, first, *flat)
        found = attention.attend_rows(part, first, *tiles)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        return found

    together = run(start, end)
    for row in range(count):
        assert torch.equal(run(start + row, start + row + 1)[0], together[row])


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33, 64])
@pytest.mark.parametrize("strength", [1e-4, 0.1, 1.0, 5.0])  # BR-036: gates of any size
def test_delta(rows: int, strength: float):
    heads, k_dim, v_dim = 3, 8, 12
    unit = torch.nn.functional.normalize
    base = random(1, heads, k_dim, seed=9)  # keys that overlap
    q = unit(random(rows, heads, k_dim) + base, dim=-1) * k_dim**-0.5
    k = unit(random(rows, heads, k_dim, seed=1) + base, dim=-1)
    v, s = random(rows, heads, v_dim, seed=2), random(heads, k_dim, v_dim, seed=3)
    beta = torch.sigmoid(random(rows, heads, seed=4))
    decay = -strength * random(rows, heads, seed=5).abs()
    for fold in range(0, rows + 1, delta.CHUNK):
        found = delta.scan(s, q, k, v, beta, decay, fold)
        wanted = delta_reference.scan(s, q, k, v, beta, decay, fold)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_delta_writes_key_by_value():
    # BR-039: one token with key e0 and value e5 leaves one entry, at [0, 5]
    one = torch.eye(8)[None, None]
    s, row = torch.zeros(1, 8, 8), torch.ones(1, 1)
    _, after = delta_reference.scan(
        s, one[:, :, 0], one[:, :, 0], one[:, :, 5], row, 0 * row, 1
    )
    assert after[0].nonzero().tolist() == [[0, 5]]
    parts = [
        torch.cat([x, torch.zeros(15, *x.shape[1:])])
        for x in (one[:, :, 0], one[:, :, 0], one[:, :, 5], row, 0 * row)
    ]
    _, after = delta.scan(s, *parts, fold=16)  # pyright: ignore
    assert after[0].nonzero().tolist() == [[0, 5]]
