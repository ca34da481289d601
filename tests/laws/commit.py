"""Commit law: a committed block is the same as its rows fed one by one.

For every number of rows 0…w+1, whatever stands behind them, the canonical states of
the target and of the drafters equal those of single steps.
"""

from typing import Any

import torch
from hypothesis import strategies as st

import fspec
from fspec.algorithms import commit as commit_module
from fspec.algorithms import mtp as mtp_module
from fspec.types import Block, Committed
from tests.laws.base import Law, Wrong, require
from tests.laws.settings import Setting
from tests.laws.systems import canaries_live, ints, poisoned, random_tokens, system

CAPACITY = 130  # beside what a setting's long prompts take


def check(data: st.DataObject, setting: Setting) -> None:
    """Commit every prefix of a drawn block and compare with single steps."""
    params, streams = system(data.draw(setting.variant()), setting)
    width = data.draw(st.integers(0, 15), "width")
    drafters = fspec.mtp(max(width, 1)), fspec.lookup()
    _, states = poisoned(
        params,
        drafters,
        batch=1,
        capacity=CAPACITY + setting.long,
        width=width,
        page_size=data.draw(setting.page_size(), "page size"),
        seed=data.draw(st.integers(0, 99), "places"),
    )
    known = streams[0][: data.draw(setting.counts(0, 70), "prompt")]
    states = _known(params, drafters, states, known)
    states = _two_cycles(params, drafters, states, data, width)
    block = _draw_block(data, params, width)
    single = states
    verdict = fspec.verify(params, states[0], block)
    for rows in range(width + 2):
        count = ints(params, [rows])
        target = fspec.commit(params, states[0], verdict, count)
        committed = Committed(block.tokens, verdict.hidden, verdict.features, count)
        after = target, *_absorb(params, drafters, states[1:], committed)
        require(
            fspec.equal(_canonical(after, params), _canonical(single, params)),
            f"{rows} rows of a block of {width + 1} are not {rows} single steps",
        )
        require(canaries_live(after), "a canary page was written")
        if rows <= width:
            single = _one(params, drafters, single, block.tokens[:, rows : rows + 1])


def _known(params, drafters, states, ids: list[int]):
    if not ids:
        return states
    tokens = ints(params, [ids])
    target, hidden, features = fspec.extend(params, states[0], tokens)
    known = Committed(tokens, hidden, features, ints(params, [len(ids)]))
    return target, *_absorb(params, drafters, states[1:], known)


def _two_cycles(params, drafters, states, data: st.DataObject, width: int):
    # so that folding lags, and a cut has something to take back
    for _ in range(data.draw(st.integers(0, 2), "cycles before")):
        block = _draw_block(data, params, width)
        verdict = fspec.verify(params, states[0], block)
        rows = ints(params, [data.draw(st.integers(0, width + 1), "rows before")])
        committed = Committed(block.tokens, verdict.hidden, verdict.features, rows)
        target = fspec.commit(params, states[0], verdict, rows)
        states = target, *_absorb(params, drafters, states[1:], committed)
    back = data.draw(st.integers(0, 2 * width + 2), "cut")
    reach = int(states[0].recent[states[0].slots, 1])
    length = states[0].pages.length[states[0].slots]
    return fspec.cut(states, (length - back).clamp(min=reach))


def _draw_block(data: st.DataObject, params, width: int) -> Block:
    seed = data.draw(st.integers(0, 999), "tokens")
    tokens = random_tokens(params, 1, width + 1, seed=seed)
    return Block(tokens, ints(params, [width + 1]))


def _one(params, drafters, states, token):
    one = ints(params, [1])
    verdict = fspec.verify(params, states[0], Block(token, one))
    committed = Committed(token, verdict.hidden, verdict.features, one)
    target = fspec.commit(params, states[0], verdict, one)
    return target, *_absorb(params, drafters, states[1:], committed)


def _absorb(params, drafters, states, committed):
    pairs = zip(drafters, states, strict=True)
    return tuple(drafter.absorb(params, state, committed) for drafter, state in pairs)


def _canonical(states, params) -> Any:
    return tuple(fspec.canonical(state, params) for state in states)


def _stale_fold(right):
    # rows are dropped, S stays behind
    def append(state, slot, held, rows, s, start, edge):
        old = list(state.s[:, slot].clone())
        right(state, slot, held, rows, old, start, edge)

    return append


def _skip_a_row(right):
    def append(state, slot, held, rows, s, start, edge):
        stale = torch.cat([rows[:, :1], rows[:, :-1]], 1)
        right(state, slot, held, stale, s, start, edge)

    return append


def _whole_block(right):
    # K/V of rejected rows counted in: one row late
    def write(pages, slot, start, k, v):
        right(pages, slot, start, k.roll(1, 1), v.roll(1, 1))

    return write


def _pair_with_own_hidden(right):
    def keys(params, mtp, hidden, tokens, positions):
        return right(params, mtp, hidden.roll(-1, 0), tokens, positions)

    return keys


LAW = Law(
    "commit",
    check,
    (
        Wrong("S not folded", commit_module, "append_rows_", _stale_fold),
        Wrong("raw rows one late", commit_module, "append_rows_", _skip_a_row),
        Wrong("K/V rows rolled", commit_module, "write_rows_", _whole_block),
        Wrong("MTP pairs shifted", mtp_module, "mtp_keys", _pair_with_own_hidden),
    ),
)
