"""Checks of the Triton kernels that run wherever Triton does: a GPU, the interpreter.

Each compares with the operation's reference, on memory that is NaN wherever nothing
may be read or everything must be written, and holds the row law: a row's bytes are the
same alone and among others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from fspec.kernels.attention import reference as attention_reference
from fspec.kernels.base import Kernels
from fspec.kernels.delta import reference as delta_reference
from fspec.kernels.delta.triton import CHUNK
from fspec.kernels.gate import reference as gate_reference
from fspec.kernels.heads import reference as heads_reference
from fspec.kernels.norm import reference as norm_reference
from fspec.kernels.packed import dequantize, quantize
from fspec.kernels.vocab.triton import top_logits
from fspec.types import Batch, Rotation

EPS = 1e-6


class Draw:
    """Random tensors of one device and dtype, the same for the same seed."""

    def __init__(self, device: str, dtype: torch.dtype, seed: int = 0):
        self.device, self.dtype = device, dtype
        self.random = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        drawn = torch.randn(*shape, generator=self.random)
        return drawn.to(self.device, dtype or self.dtype)


@contextmanager
def nan_filled() -> Iterator[None]:
    """Let `new_empty` return NaN, or the least integer, in place of old memory."""
    empty = Tensor.new_empty

    def filled(self, *size, **options):
        made = empty(self, *size, **options)
        bad = torch.nan if made.is_floating_point() else torch.iinfo(made.dtype).min
        return made.fill_(bad)

    with mock.patch.object(Tensor, "new_empty", filled):
        yield


def close(found: Tensor, wanted: Tensor, tolerance: float | None = None) -> None:
    """Require a small distance in norm: 4e-3 in bf16, 1e-5 in fp32."""
    assert found.shape == wanted.shape
    limit = tolerance or (4e-3 if found.dtype == torch.bfloat16 else 1e-5)
    a, b = found.double().cpu(), wanted.double().cpu()
    assert not a.isnan().any(), "something was not written, or poison was read"
    off = float((a - b).norm() / b.norm().clamp(min=1e-9))
    assert off < limit, f"distance {off:.2e}, limit {limit:.0e}"


def same(a: Tensor, b: Tensor) -> None:
    """Require the same values in every element."""
    assert a.shape == b.shape
    off = (a != b).float().mean()
    assert torch.equal(a, b), f"{off:.2%} of the elements differ"


def product(ops: Kernels, draw: Draw, inner: int, outer: int, rows: list[int]) -> None:
    """Rows among any number of others; both ways a weight may lie in memory."""
    x, w = draw(max(rows), inner), draw(inner, outer) * inner**-0.5
    with nan_filled():
        full = ops.product(x, w.t().contiguous().t())
        close(full, (x.double() @ w.double()).to(x.dtype))
        same(ops.product(x[:3], w), full[:3])
        for count in rows:
            first = (max(rows) - count) // 2
            same(ops.product(x[first : first + count], w), full[first : first + count])


def packed(
    ops: Kernels,
    draw: Draw,
    inner: int,
    outer: int,
    group: int,
    symmetric: bool,
    rows: list[int],
) -> None:
    """The product of the weight that the codes stand for, for any number of rows."""
    w = quantize(draw(inner, outer) * inner**-0.5, group, symmetric)
    x = draw(max(rows), inner)
    with nan_filled():
        full = ops.product(x, w)
        close(full, (x.double() @ dequantize(w).double()).to(x.dtype))
        for count in rows:
            first = (max(rows) - count) // 2
            same(ops.product(x[first : first + count], w), full[first : first + count])


def norms(ops: Kernels, draw: Draw, rows: int, dim: int) -> None:
    """RMSNorm and the residual sum before it; x may be a slice of wider rows."""
    x, y = draw(rows, dim + 8)[:, :dim], draw(rows, dim)
    gain = draw(dim, dtype=torch.float32)
    with nan_filled():
        out = ops.rms_norm(x, gain, EPS)
        close(out, norm_reference.rms_norm(x, gain, EPS))
        total, normed = ops.add_norm(x, y, gain, EPS)
        wanted = norm_reference.add_norm(x, y, gain, EPS)
        same(total, wanted[0])
        close(normed, wanted[1])
        for row in range(rows):
            same(ops.rms_norm(x[row : row + 1], gain, EPS)[0], out[row])


def heads(ops: Kernels, draw: Draw, rows: int, count: int, dim: int, half: int) -> None:
    """Norm, rotation of the first dims; columns behind the heads are not read."""
    packed = torch.cat([draw(rows, count * dim), draw(rows, 5) * torch.nan], 1)
    gain = draw(count, dim, dtype=torch.float32)
    by = Rotation(*(draw(rows, 1, half, dtype=torch.float32) for _ in "cs"))
    with nan_filled():
        out = ops.norm_rotate(packed, gain, by, EPS)
        close(out, heads_reference.norm_rotate(packed, gain, by, EPS))
        one = Rotation(by.cos[1:2], by.sin[1:2])
        same(ops.norm_rotate(packed[1:2], gain, one, EPS)[0], out[1])


def gates(ops: Kernels, draw: Draw, rows: int, count: int, dim: int) -> None:
    """The three gates, their second operand a slice of wider rows."""
    columns = count * dim
    x, gate = draw(rows, columns), draw(rows, columns + 9)[:, 9:] * 4
    gain = draw(dim, dtype=torch.float32)
    with nan_filled():
        close(ops.sigmoid_gate(x, gate), gate_reference.sigmoid_gate(x, gate))
        both = torch.cat([x * 4, gate], 1)
        out = ops.swiglu(both)
        close(out, gate_reference.swiglu(both))
        same(ops.swiglu(both[-1:])[0], out[-1])
        split = x.view(rows, count, dim)
        out = ops.norm_gate(split, gate, gain, EPS)
        close(out, gate_reference.norm_gate(split, gate, gain, EPS))
        same(ops.norm_gate(split[-1:], gate[-1:], gain, EPS)[0], out[-1])


def vocab(ops: Kernels, draw: Draw, inner: int, outer: int, rows: int) -> None:
    """Argmax and top-16 of integer logits, which often tie: the lowest id first."""
    hidden, w = draw(rows, inner).sign(), draw(inner, outer).sign()
    logits = (hidden.float() @ w.float()).to(hidden.dtype)
    values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    with nan_filled():
        same(ops.argmax(hidden, w), ids[:, 0])
        same(ops.argmax(hidden.t().contiguous().t(), w), ids[:, 0])
        found = ops.top(hidden, w, 16)
        same(found[0], values[:, :16])
        same(found[1], ids[:, :16])
        same(ops.argmax(-hidden[:1] * 0, w), torch.zeros_like(ids[:1, 0]))
        for found, wanted in zip(top_logits(logits, 16), (values, ids), strict=True):
            same(found, wanted[:, :16])


def attention(
    ops: Kernels,
    draw: Draw,
    lengths: list[int],
    counts: list[int],
    size: int,
    kv: int,
    group: int,
    dim: int,
) -> None:
    """A batch over random pages, poison behind every length; each row alone."""
    t, b = max(counts), len(lengths)
    case = _Pages(draw, lengths, counts, size, kv, dim)
    q = draw(b * t, kv * group, dim)
    batch = Batch(case.slots, lengths, counts, [0] * b, [0] * b)

    def run(batch: Batch, q: Tensor, k: Tensor, v: Tensor, single: bool) -> Tensor:
        each = len(q) // b
        arenas = case.keys, case.values
        plan = ops.plan(batch, each, kv * group, case.keys, case.table, single)
        return ops.attend(plan, 1, q, k, v, *arenas, case.table)

    live = torch.cat([torch.arange(t) < count for count in counts])
    with nan_filled():
        full = run(batch, q, case.k, case.v, False)
        host = [x.cpu() for x in (q, case.k, case.v, *case.arenas(), case.table)]
        wanted = attention_reference.attend(batch, 1, *host)
        close(
            full[live], wanted[live].to(q.dtype), 6e-3 if q.element_size() == 2 else 0
        )
        same(run(batch, q, case.k, case.v, True)[live], full[live])
        for j in range(t):
            rows = torch.arange(b) * t + j
            now = Batch(
                case.slots,
                [n + j for n in lengths],
                [int(j < count) for count in counts],
                [0] * b,
                [0] * b,
            )
            alone = run(now, q[rows], case.k[rows], case.v[rows], False)
            keep = torch.tensor(now.counts) > 0
            same(alone[keep], full[rows][keep])
            case.commit(j)


class _Pages:
    """Two layers of arenas of which layer 1 holds the rows of a batch."""

    def __init__(self, draw, lengths, counts, size, kv, dim):
        b, t = len(lengths), max(counts)
        each = -(-(max(lengths) + t) // size)
        pages = b * each + 3
        order = torch.randperm(pages - 2, generator=draw.random)[: b * each] + 1
        self.lengths, self.counts, self.t, self.size = lengths, counts, t, size
        self.slots = list(range(b))[::-1]
        self.table = order.view(b, each).to(draw.device)
        self.keys, self.values = (
            torch.full((2, pages, size, kv, dim), torch.nan).to(draw(1)) for _ in "kv"
        )
        self.k, self.v = (draw(b * t, kv, dim) for _ in "kv")
        for slot, length in zip(self.slots, lengths, strict=True):
            rows = [draw(length, kv, dim) for _ in "kv"]
            self._write(slot, 0, *rows)

    def arenas(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    def _write(self, slot: int, first: int, k: Tensor, v: Tensor) -> None:
        at = torch.arange(first, first + len(k), device=k.device)
        page = self.table[slot, at // self.size]
        self.keys[1, page, at % self.size] = k
        self.values[1, page, at % self.size] = v

    def commit(self, j: int) -> None:
        """Write row j of every request into its pages."""
        for i, slot in enumerate(self.slots):
            if j < self.counts[i]:
                row = slice(i * self.t + j, i * self.t + j + 1)
                self._write(slot, self.lengths[i] + j, self.k[row], self.v[row])


def delta(
    ops: Kernels,
    draw: Draw,
    lengths: list[int],
    counts: list[int],
    starts: list[int],
    heads: tuple[int, int],
    dims: tuple[int, int],
    taps: int = 4,
) -> None:
    """A batch from chunk edges on, with folds; each row alone, as decoding has it."""
    (keys, values), (dk, dv) = heads, dims
    channels = 2 * keys * dk + values * dv
    wide, t, b = channels + 2 * values, max(counts), len(lengths)
    fp32 = torch.float32
    weights = (
        draw(channels, taps, dtype=fp32) * 0.5,
        -draw(values, dtype=fp32).abs(),
        draw(values, dtype=fp32),
    )
    slots = list(range(b))[::-1]
    s = torch.full((2, b, values, dk, dv), torch.nan).to(draw.device)
    s[1] = draw(b, values, dk, dv, dtype=fp32) * 0.3
    held = max(n - start for n, start in zip(lengths, starts, strict=True))
    rows = torch.full((2, b, taps - 1 + held + t, wide), torch.nan).to(draw(1))
    for slot, n, start in zip(slots, lengths, starts, strict=True):
        known = taps - 1 + n - start
        rows[1, slot, :known] = draw(known, wide)
    raw = draw(b * t, wide)
    ends = [n + count for n, count in zip(lengths, counts, strict=True)]
    edges = [end // CHUNK * CHUNK for end in ends]
    batch = Batch(slots, lengths, counts, edges, starts)

    def run(batch: Batch, raw: Tensor) -> tuple[Tensor, list[Tensor]]:
        arena = draw(1, 1, 16, 1, 16)
        plan = ops.plan(batch, len(raw) // b, 1, arena, slots)
        return ops.delta(plan, 1, *weights, raw, s, rows)

    live = torch.cat([torch.arange(t) < count for count in counts])
    with nan_filled():
        full, folded = run(batch, raw)
        host = [x.cpu() for x in (*weights, raw, s, rows)]
        wanted, states = delta_reference.delta(batch, 1, *host)
        limit = 4e-3 if raw.element_size() == 2 else 2e-5
        close(full[live], wanted[live], limit)
        for found, state in zip(folded, states, strict=True):
            close(found, state, 1e-5)
        for j in range(t):
            at = torch.arange(b) * t + j
            now = [int(j < count) for count in counts]
            reached = [
                min(n + j + 1, e) // CHUNK * CHUNK
                for n, e in zip(lengths, ends, strict=True)
            ]
            moved = [n + j for n in lengths]
            alone, last = run(Batch(slots, moved, now, reached, starts), raw[at])
            keep = torch.tensor(now) > 0
            same(alone[keep], full[at][keep])
            for i, slot in enumerate(slots):
                if now[i]:
                    rows[1, slot, taps - 1 + moved[i] - starts[i]] = raw[at[i]]
                if now[i] and moved[i] + 1 == ends[i]:
                    same(last[i], folded[i])
