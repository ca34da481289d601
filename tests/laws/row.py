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
from tests.laws import wrong_kernels as wrong
from tests.laws.base import Law, Wrong, require, same
from tests.laws.settings import CPU, CUDA, Setting
from tests.laws.systems import (
    STREAMS,
    canaries_live,
    ints,
    poisoned,
    random_tokens,
    system,
    with_kernels,
)

WIDTH = 15
REAL = ("cuda-bf16", "cuda-w4a16")  # real shapes


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
def reference(variant: int, stream: int, setting: Setting) -> Rows:
    """Run a stream one token at a time."""
    params, streams = system(variant, setting)
    state = fspec.init_target(params, capacity=setting.longest, width=0)
    taps = _taps(params)
    verdicts, s = [], []
    one = ints(params, [1])
    for length, token in enumerate(streams[stream]):
        if length % CHUNK == 0:
            s.append(fspec.canonical(state, params)[0].s)
        verdict = fspec.verify(params, state, Block(ints(params, [[token]]), one), taps)
        state = fspec.commit(params, state, verdict, one)
        verdicts.append(verdict._replace(s=[]))  # large, and in the state by now
    across = ("logits", "hidden", "features")
    rows = {f: torch.cat([getattr(x, f) for x in verdicts], 1)[0] for f in across}
    layered = ("k", "v", "raw")
    rows |= {f: torch.cat([getattr(x, f) for x in verdicts], 2)[:, 0] for f in layered}
    # a NaN equals a NaN of the same bits: a law over them would say nothing
    require(bool(rows["logits"].isfinite().all()), "the reference is not finite")
    return Rows(**rows, s=s)


def prepare(setting: Setting) -> None:
    """Compute every reference of a setting."""
    for variant in range(len(setting.variants)):
        for stream in range(STREAMS):
            reference(variant, stream, setting)


def check(data: st.DataObject, setting: Setting) -> None:
    """Walk drawn streams in a drawn way and compare every row with the reference."""
    variant = data.draw(setting.variant(), "variant")
    params, streams = system(variant, setting)
    batch = data.draw(st.integers(1, 4), "batch")
    chosen = data.draw(
        st.lists(st.integers(0, STREAMS - 1), min_size=batch, max_size=batch), "streams"
    )
    _, (state,) = poisoned(
        params,
        (),
        batch=batch,
        capacity=setting.longest + WIDTH,
        width=WIDTH,
        page_size=data.draw(setting.page_size(), "page size"),
        seed=data.draw(st.integers(0, 99), "places"),
    )
    lengths, reach = [0] * batch, [(0, 0)] * batch
    for _ in range(data.draw(st.integers(1, 6), "turns")):
        turn = data.draw(st.sampled_from(["extend", "verify", "verify", "cut"]), "turn")
        counts = data.draw(_counts(setting, turn, lengths), "counts")
        if turn == "cut":
            lengths = [
                max(low, length - back)
                for length, back, (_, low) in zip(lengths, counts, reach, strict=True)
            ]
            state = fspec.cut(state, ints(params, lengths))
            reach = [(min(a, n), b) for (a, b), n in zip(reach, lengths, strict=True)]
            continue
        tokens = ints(params, _tokens(streams, chosen, lengths, counts))
        if turn == "extend":
            run = _extend(params, state, tokens, counts)
        else:
            run = _verify(data, params, state, tokens, counts)
        state, done = run
        _compare(variant, setting, chosen, lengths, done)
        for i, r in enumerate(done.rows):
            old = lengths[i], reach[i][0]
            lengths[i] += r
            if r:
                reach[i] = (lengths[i], lengths[i]) if turn == "extend" else old
    _compare_state(params, state, variant, setting, chosen, lengths)
    require(canaries_live((state,)), "a canary page was written")


class Done(NamedTuple):
    """What one turn showed: rows committed, rows that were right, and the values."""

    rows: list[int]
    right: list[int]
    values: dict[str, Tensor]


def _taps(params: fspec.TargetParams) -> tuple[int, ...]:
    last = len(params.layers) - 1
    return (last, 0, min(2, last))


def _counts(
    setting: Setting, turn: str, lengths: list[int]
) -> st.SearchStrategy[list[int]]:
    most = {"extend": 70, "verify": WIDTH + 1, "cut": 2 * WIDTH + 2}[turn]
    left = [setting.longest - length for length in lengths]
    each = [
        setting.counts(0, min(most, rows), rows)
        if turn == "extend"
        else st.integers(0, most if turn == "cut" else min(most, rows))
        for rows in left
    ]
    drawn = st.tuples(*each).map(list)
    return drawn if turn == "cut" else drawn.filter(any) | st.just([0] * len(lengths))


def _tokens(
    streams: tuple[list[int], ...],
    chosen: list[int],
    lengths: list[int],
    counts: list[int],
) -> list[list[int]]:
    longest = max(max(counts), 1)
    return [
        (streams[s][n : n + longest] + [0] * longest)[:longest]
        for s, n in zip(chosen, lengths, strict=True)
    ]


def _extend(params, state, tokens: Tensor, counts: list[int]):
    state, hidden, features = fspec.extend(
        params, state, tokens, _taps(params), ints(params, counts)
    )
    logits = fspec.head(params, hidden)
    values = {"logits": logits, "hidden": hidden, "features": features}
    return state, Done(counts, counts, values)


def _verify(data: st.DataObject, params, state, tokens: Tensor, counts: list[int]):
    rows = data.draw(st.tuples(*(st.integers(0, c) for c in counts)).map(list), "rows")
    junk = data.draw(st.integers(0, 9), "junk")
    garbage = random_tokens(params, *tokens.shape, seed=junk)
    keep = ints(params, rows)
    right = torch.arange(tokens.shape[1], device=keep.device) < keep[:, None]
    block = Block(torch.where(right, tokens, garbage), ints(params, counts))
    verdict = fspec.verify(params, state, block, _taps(params))
    values = {
        name: getattr(verdict, name)
        for name in ("logits", "hidden", "features", "k", "v", "raw")
    }
    state = fspec.commit(params, state, verdict, keep)
    return state, Done(rows, rows, values)


def _compare(
    variant: int,
    setting: Setting,
    chosen: list[int],
    lengths: list[int],
    done: Done,
) -> None:
    for i, (stream, start, r) in enumerate(
        zip(chosen, lengths, done.right, strict=True)
    ):
        wanted = reference(variant, stream, setting)
        for name, value in done.values.items():
            expected = getattr(wanted, name)
            if name in ("k", "v", "raw"):
                same(value[:, i, :r], expected[:, start : start + r], f"{name} rows")
            else:
                same(value[i, :r], expected[start : start + r], f"{name} rows")


def _compare_state(params, state, variant: int, setting, chosen, lengths) -> None:
    history = params.config.conv - 1
    for request, stream, length in zip(
        fspec.canonical(state, params), chosen, lengths, strict=True
    ):
        wanted = reference(variant, stream, setting)
        edge = length // CHUNK * CHUNK
        require(request.length == length, "length of the state")
        require(request.start == edge, "position of S")
        same(request.k.transpose(1, 2), wanted.k[:, :length], "K pages")
        same(request.v.transpose(1, 2), wanted.v[:, :length], "V pages")
        if edge // CHUNK < len(wanted.s):
            same(request.s, wanted.s[edge // CHUNK], "S")
        raw = F.pad(wanted.raw[:, :length], (0, 0, history, 0))
        same(request.rows, raw[:, edge:], "raw rows")


def _kernels(title: str, settings: tuple[str, ...], **versions) -> Wrong:
    wrong_system = with_kernels(**versions)
    return Wrong(title, sys.modules[__name__], "system", wrong_system, settings)


LAW = Law(
    "row",
    check,
    (
        Wrong("chunks from the call's start", delta, "scan", wrong.recur_later, CPU),
        Wrong("beta in bf16 if few rows", delta, "gates", wrong.rounded_beta, CPU),
        # rounding to bf16 hides these three
        Wrong(
            "library attention", attention, "attend_rows", wrong.library_sum, ("fp32",)
        ),
        _kernels("no row groups", ("fp32",), product=wrong.plain_product),
        Wrong("library silu", delta, "silu", wrong.library_silu, ("fp32",)),
        _kernels("chunk edges that move", CUDA, delta=wrong.chunks_of_the_call),
        _kernels("splits by number of rows", REAL, plan=wrong.other_splits),
        _kernels("library product of a block", REAL, product=wrong.library_product),
        _kernels("two sums if few rows", REAL[:1], product=wrong.two_sums),
    ),
    prepare,
)
