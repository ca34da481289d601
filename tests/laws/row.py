"""Row law: what belongs to a position depends on the tokens up to it, on nothing else.

The reference of every stream is one token at a time, alone, in pages of 64. An example
runs streams side by side through any mixture of chunks, blocks with garbage behind the
committed rows, cuts and idle turns, and compares each row that it meets.
"""

import sys
from functools import cache
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import fspec
from fspec.kernels.attention import vector as attention
from fspec.kernels.delta import CHUNK
from fspec.kernels.delta import vector as delta
from fspec.types import Block
from tests.laws.base import Law, Wrong, require, same
from tests.laws.systems import (
    LONGEST,
    STREAMS,
    VARIANTS,
    canaries_live,
    poisoned,
    system,
    with_kernels,
)

WIDTH = 15


class Rows(NamedTuple):
    """Everything of the positions of a stream; `s[i]` belongs to multiple i of C."""

    logits: Tensor
    hidden: Tensor
    features: Tensor
    k: Tensor
    v: Tensor
    raw: Tensor
    s: list[Tensor]


@cache
def reference(variant: int, stream: int, dtype: torch.dtype) -> Rows:
    """Run a stream one token at a time."""
    params, streams = system(variant, dtype)
    state = fspec.init_target(params, capacity=LONGEST, width=0)
    taps = _taps(params)
    verdicts, s = [], []
    one = torch.tensor([1])
    for length, token in enumerate(streams[stream]):
        if length % CHUNK == 0:
            s.append(fspec.canonical(state, params)[0].s)
        block = Block(torch.tensor([[token]]), one)
        verdicts.append(fspec.verify(params, state, block, taps))
        state = fspec.commit(params, state, verdicts[-1], one)
    across = ("logits", "hidden", "features")
    rows = {f: torch.cat([getattr(x, f) for x in verdicts], 1)[0] for f in across}
    layered = ("k", "v", "raw")
    rows |= {f: torch.cat([getattr(x, f) for x in verdicts], 2)[:, 0] for f in layered}
    return Rows(**rows, s=s)


def check(data: st.DataObject, dtype: torch.dtype) -> None:
    """Walk drawn streams in a drawn way and compare every row with the reference."""
    variant = data.draw(st.integers(0, len(VARIANTS) - 1), "variant")
    params, streams = system(variant, dtype)
    batch = data.draw(st.integers(1, 4), "batch")
    chosen = data.draw(
        st.lists(st.integers(0, STREAMS - 1), min_size=batch, max_size=batch), "streams"
    )
    _, (state,) = poisoned(
        params,
        (),
        batch=batch,
        capacity=LONGEST + WIDTH,
        width=WIDTH,
        page_size=data.draw(st.sampled_from([1, 4, 16, 64]), "page size"),
        seed=data.draw(st.integers(0, 99), "places"),
    )
    lengths, reach = [0] * batch, [(0, 0)] * batch
    for _ in range(data.draw(st.integers(1, 6), "turns")):
        turn = data.draw(st.sampled_from(["extend", "verify", "verify", "cut"]), "turn")
        counts = data.draw(_counts(turn, lengths), "counts")
        if turn == "cut":
            lengths = [
                max(low, length - back)
                for length, back, (_, low) in zip(lengths, counts, reach, strict=True)
            ]
            state = fspec.cut(state, torch.tensor(lengths))
            reach = [(min(a, n), b) for (a, b), n in zip(reach, lengths, strict=True)]
            continue
        tokens = _tokens(streams, chosen, lengths, counts)
        if turn == "extend":
            run = _extend(params, state, tokens, counts)
        else:
            run = _verify(data, params, state, tokens, counts)
        state, done = run
        _compare(variant, dtype, chosen, lengths, done)
        for i, r in enumerate(done.rows):
            old = lengths[i], reach[i][0]
            lengths[i] += r
            if r:
                reach[i] = (lengths[i], lengths[i]) if turn == "extend" else old
    _compare_state(params, state, variant, dtype, chosen, lengths)
    require(canaries_live((state,)), "a canary page was written")


class Done(NamedTuple):
    """What one turn showed: rows committed, rows that were right, and the values."""

    rows: list[int]
    right: list[int]
    values: dict[str, Tensor]


def _taps(params: fspec.TargetParams) -> tuple[int, ...]:
    return (len(params.layers) - 1, 0, 2)


def _counts(turn: str, lengths: list[int]) -> st.SearchStrategy[list[int]]:
    most = {"extend": 70, "verify": WIDTH + 1, "cut": 2 * WIDTH + 2}[turn]
    each = [
        st.integers(0, most if turn == "cut" else min(most, LONGEST - length))
        for length in lengths
    ]
    drawn = st.tuples(*each).map(list)
    return drawn if turn == "cut" else drawn.filter(any) | st.just([0] * len(lengths))


def _tokens(
    streams: tuple[list[int], ...],
    chosen: list[int],
    lengths: list[int],
    counts: list[int],
) -> Tensor:
    longest = max(max(counts), 1)
    rows = [
        (streams[s][n : n + longest] + [0] * longest)[:longest]
        for s, n in zip(chosen, lengths, strict=True)
    ]
    return torch.tensor(rows)


def _extend(params, state, tokens: Tensor, counts: list[int]):
    state, hidden, features = fspec.extend(
        params, state, tokens, _taps(params), torch.tensor(counts)
    )
    logits = fspec.head(params, hidden)
    values = {"logits": logits, "hidden": hidden, "features": features}
    return state, Done(counts, counts, values)


def _verify(data: st.DataObject, params, state, tokens: Tensor, counts: list[int]):
    rows = data.draw(st.tuples(*(st.integers(0, c) for c in counts)).map(list), "rows")
    garbage = torch.randint(
        params.config.vocab,
        tokens.shape,
        generator=torch.Generator().manual_seed(data.draw(st.integers(0, 9), "junk")),
    )
    right = torch.arange(tokens.shape[1]) < torch.tensor(rows)[:, None]
    block = Block(torch.where(right, tokens, garbage), torch.tensor(counts))
    verdict = fspec.verify(params, state, block, _taps(params))
    values = {
        name: getattr(verdict, name)
        for name in ("logits", "hidden", "features", "k", "v", "raw")
    }
    state = fspec.commit(params, state, verdict, torch.tensor(rows))
    return state, Done(rows, rows, values)


def _compare(
    variant: int,
    dtype: torch.dtype,
    chosen: list[int],
    lengths: list[int],
    done: Done,
) -> None:
    for i, (stream, start, r) in enumerate(
        zip(chosen, lengths, done.right, strict=True)
    ):
        wanted = reference(variant, stream, dtype)
        for name, value in done.values.items():
            expected = getattr(wanted, name)
            if name in ("k", "v", "raw"):
                same(value[:, i, :r], expected[:, start : start + r], f"{name} rows")
            else:
                same(value[i, :r], expected[start : start + r], f"{name} rows")


def _compare_state(params, state, variant: int, dtype, chosen, lengths) -> None:
    history = params.config.conv - 1
    for request, stream, length in zip(
        fspec.canonical(state, params), chosen, lengths, strict=True
    ):
        wanted = reference(variant, stream, dtype)
        edge = length // CHUNK * CHUNK
        require(request.length == length, "length of the state")
        require(request.start == edge, "position of S")
        same(request.k.transpose(1, 2), wanted.k[:, :length], "K pages")
        same(request.v.transpose(1, 2), wanted.v[:, :length], "V pages")
        if edge // CHUNK < len(wanted.s):
            same(request.s, wanted.s[edge // CHUNK], "S")
        raw = F.pad(wanted.raw[:, :length], (0, 0, history, 0))
        same(request.rows, raw[:, edge:], "raw rows")


def _plain_product(right):
    return lambda x, w: x @ w


def _library_sum(right):
    def attend(q, start, keys, values):
        n = start + q.shape[0]
        seen = torch.arange(n) <= torch.arange(start, n)[:, None]
        group = q.shape[1] // keys.shape[2]
        rows = (x.flatten(0, 1)[:n].transpose(0, 1) for x in (keys, values))
        k, v = (x.repeat_interleave(group, 0) for x in rows)
        return F.scaled_dot_product_attention(
            q.float().transpose(0, 1), k, v, attn_mask=seen
        ).transpose(0, 1)

    return attend


def _recur_from_length(right):
    # chunks that start at the call's first row, not at absolute multiples
    def scan(s, q, k, v, beta, decay, fold):
        shift = 3 if q.shape[0] > 3 else 0
        if not shift:
            return right(s, q, k, v, beta, decay, fold)
        parts = [x[:shift] for x in (q, k, v, beta, decay)]
        zeros = [F.pad(x, (0,) * (2 * x.dim() - 1) + (CHUNK - shift,)) for x in parts]
        _, middle = right(s, *zeros, CHUNK)
        first, _ = right(s, *parts, 0)
        rest, _ = right(middle, *(x[shift:] for x in (q, k, v, beta, decay)), 0)
        return torch.cat([first, rest]), right(s, q, k, v, beta, decay, fold)[1]

    return scan


def _rounded_beta_in_decode(right):
    # seen elsewhere: one path takes beta through bf16, another does not
    def gates(speed, dt_bias, beta, decay):
        strength, fade = right(speed, dt_bias, beta, decay)
        short = beta.shape[0] <= CHUNK // 2
        return strength.bfloat16().float() if short else strength, fade

    return gates


def _library_silu(right):
    return lambda x: F.silu(x.float())


LAW = Law(
    "row",
    check,
    (
        Wrong("chunks from the call's start", delta, "scan", _recur_from_length),
        Wrong("beta in bf16 if few rows", delta, "gates", _rounded_beta_in_decode),
        # rounding to bf16 hides these three
        Wrong("library attention", attention, "attend_rows", _library_sum, ("fp32",)),
        Wrong(
            "no row groups",
            sys.modules[__name__],
            "system",
            with_kernels(product=_plain_product),
            ("fp32",),
        ),
        Wrong("library silu", delta, "silu", _library_silu, ("fp32",)),
    ),
)
