"""Attention and delta rule over whole calls: slots anywhere, counts of any size."""

from typing import NamedTuple

import pytest
import torch

from fspec.kernels import attention, delta
from fspec.kernels.attention import reference as attention_reference
from fspec.kernels.delta import reference as delta_reference
from fspec.types import Batch
from tests.kernels.data import DTYPES, random

# each with an idle request, and one at the very start of its sequence
BATCHES = [
    Batch([2, 0, 3], [21, 0, 16], [3, 5, 0], [16, 0, 0], [16, 0, 16]),
    Batch([1, 3], [70, 33], [1, 1], [64, 32], [48, 32]),
    Batch([0], [18], [33], [48], [16]),
]
SLOTS, TAPS = 4, 4


def rows_of(batch: Batch) -> int:
    return max(batch.counts)


class Call(NamedTuple):
    """Arguments of `attend` behind the plan."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor


def attention_call(batch: Batch, page: int, dtype: torch.dtype) -> Call:
    """Pages in any order; NaN in every row that is not committed."""
    heads, kv, dim, t = 4, 2, 24, rows_of(batch)
    r, each = len(batch.slots) * t, -(-130 // page)
    order = torch.randperm(SLOTS * each, generator=torch.Generator().manual_seed(1))
    table = order.view(SLOTS, each)
    arenas = [torch.full((2, SLOTS * each, page, kv, dim), torch.nan) for _ in "kv"]
    for slot, length in zip(batch.slots, batch.lengths, strict=True):
        at = torch.arange(length)
        for seed, arena in enumerate(arenas):
            arena[1, table[slot, at // page], at % page] = random(
                length, kv, dim, seed=10 * slot + seed
            )
    q, k, v = (random(r, n, dim, seed=n).to(dtype) for n in (heads, kv, kv))
    keys, values = (arena.to(dtype) for arena in arenas)
    return Call(1, q, k, v, keys, values, table)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("page", [1, 16, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(batch: Batch, page: int, dtype: torch.dtype):
    call, t = attention_call(batch, page, dtype), rows_of(batch)
    found = attention.attend(batch, *call)
    wanted = attention_reference.attend(batch, *call)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    # a request by itself has the same bits
    for i, facts in enumerate(zip(*batch, strict=True)):
        alone = Batch(*([fact] for fact in facts))
        rows = slice(i * t, (i + 1) * t)
        part = call._replace(q=call.q[rows], k=call.k[rows], v=call.v[rows])
        kept = slice(0, batch.counts[i])
        one = attention.attend(alone, *part)
        assert torch.equal(one[kept], found[rows][kept])


class Recurrence(NamedTuple):
    """Arguments of `delta` behind the plan."""

    layer: int
    conv: torch.Tensor
    speed: torch.Tensor
    dt_bias: torch.Tensor
    raw: torch.Tensor
    s: torch.Tensor
    rows: torch.Tensor


def delta_call(batch: Batch, dtype: torch.dtype, heads: int = 4) -> Recurrence:
    """Held rows where the batch says so, NaN behind them and in idle slots."""
    key_heads, k_dim, v_dim, history = 2, 8, 12, TAPS - 1
    channels = 2 * key_heads * k_dim + heads * v_dim
    width, r = channels + 2 * heads, len(batch.slots) * rows_of(batch)
    rows = torch.full((2, SLOTS, 60, width), torch.nan)
    s = torch.full((2, SLOTS, heads, k_dim, v_dim), torch.nan)
    for slot, length, start in zip(
        batch.slots, batch.lengths, batch.starts, strict=True
    ):
        held = history + length - start
        rows[1, slot, :held] = random(held, width, seed=slot)
        s[1, slot] = random(heads, k_dim, v_dim, seed=slot)
    return Recurrence(
        1,
        random(channels, TAPS, seed=1) / 2,
        -random(heads, seed=2).abs(),
        random(heads, seed=3),
        random(r, width, seed=4).to(dtype),
        s,
        rows.to(dtype),
    )


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_delta(batch: Batch, dtype: torch.dtype):
    call, t = delta_call(batch, dtype), rows_of(batch)
    found, ends = delta.delta(batch, *call)
    wanted, wanted_ends = delta_reference.delta(batch, *call)
    # a bf16 activation at a tie of its rounding may go either way
    atol = 1e-4 if dtype == torch.float32 else 3e-2
    pairs = zip([found, *ends], [wanted, *wanted_ends], strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=atol)
    for i, facts in enumerate(zip(*batch, strict=True)):
        alone = Batch(*([fact] for fact in facts))
        rows = slice(i * t, (i + 1) * t)
        one, (end,) = delta.delta(alone, *call._replace(raw=call.raw[rows]))
        assert torch.equal(one, found[rows])
        assert torch.equal(end, ends[i])


def test_delta_rows_that_were_held_or_new():
    # the same rows in one call, or held from an earlier one: the same bits
    batch = Batch([1], [16], [9], [16], [16])
    call = delta_call(batch, torch.float32)
    whole, _ = delta.delta(batch, *call)
    rows = call.rows.clone()
    rows[1, 1, 3 : 3 + 4] = call.raw[:4]
    later = Batch([1], [20], [5], [16], [16])
    rest, _ = delta.delta(later, *call._replace(raw=call.raw[4:], rows=rows))
    assert torch.equal(rest, whole[4:])
