"""The words of fspec as records: proposals, verdicts, acceptances, drafters.

Axes: `b` batch, `t` row in block or chunk, `w` draft, `d` hidden, `n` vocabulary. A
block is `[boundary, draft 1 … draft w]`; `accepted` counts drafts and excludes the
boundary and the bonus token; `rows` counts block rows that a commit appends.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class Proposal(NamedTuple):
    """Drafts for the positions after the boundary.

    tokens: int64 `[b, w]`.
    widths: int64 `[b]`, how many of a row's drafts are real; 0 is no speculation.
    """

    tokens: Tensor
    widths: Tensor


class Block(NamedTuple):
    """What one verification runs: tokens `[b, t]`, of which `counts[b]` are real.

    A count of 0 is an inactive request.
    """

    tokens: Tensor
    counts: Tensor


class Verdict(NamedTuple):
    """The target's word on a block. Nothing here has been committed.

    block: what was verified.
    logits: `[b, t, n]`; row j is what the target says after block row j. None where
        nobody asked for them.
    choice: int64 `[b, t]`, the ids of the maxima, ties to the lowest.
    hidden: `[b, t, d]` after the final norm.
    features: `[b, t, taps * d]`.
    k, v, raw: rows that a commit would append, `[layer, b, t, …]`.
    s: `s[delta layer][request]`, the delta state that a commit would fold to.
    base: int64 `[b, 3]`, slot, length and earlier length of each request's state: a
        commit to another state is refused.
    """

    block: Block
    logits: Tensor | None
    choice: Tensor
    hidden: Tensor
    features: Tensor
    k: Tensor
    v: Tensor
    raw: Tensor
    s: list[list[Tensor]]
    base: Tensor


class Batch(NamedTuple):
    """Host-side facts of a call, one of each for every request.

    slots: where its state stands.
    lengths: its committed tokens.
    counts: its real rows.
    edges: the multiple of the delta rule's chunk at which the delta state is wanted.
    starts: the position at which the held delta state stands.
    """

    slots: list[int]
    lengths: list[int]
    counts: list[int]
    edges: list[int]
    starts: list[int]


class Rotation(NamedTuple):
    """fp32 cos and sin of every row's angles, `[row, 1, rotary dims / 2]`."""

    cos: Tensor
    sin: Tensor


class SamplingState(NamedTuple):
    """What decides acceptance and the end, for each batch row.

    width: int64 `[b]`, most drafts a request takes.
    remaining: int64 `[b]`, tokens it may still emit; 0 is inactive.
    room: int64 `[b]`, block rows that still fit into its context.
    stop_ids: int64 `[b, e]`, ids that end it, -1 where unused.
    """

    width: Tensor
    remaining: Tensor
    room: Tensor
    stop_ids: Tensor


class Acceptance(NamedTuple):
    """What a verified block comes to.

    accepted: int64 `[b]`, drafts the target agrees with, counted before any stop cut.
    tokens: int64 `[b, t]`, the new tokens: accepted drafts, then the target's own;
        -1 behind them.
    rows: int64 `[b]`, block rows to commit; as many as there are new tokens.
    boundary: int64 `[b]`, the last new token; the old boundary where there is none.
    finished: bool `[b]`, ended now or inactive before.
    """

    accepted: Tensor
    tokens: Tensor
    rows: Tensor
    boundary: Tensor
    finished: Tensor


class Committed(NamedTuple):
    """Tokens that have just become state, for a drafter to absorb.

    tokens `[b, t]`, hidden `[b, t, d]`, features `[b, t, taps * d]`, `rows[b]` of them
    real.
    """

    tokens: Tensor
    hidden: Tensor
    features: Tensor
    rows: Tensor


class Info(NamedTuple):
    """What a step reports; never part of state.

    drafted, accepted, rows: int64 `[b]`; tokens: int64 `[b, t]`, -1 behind the new
    ones; finished: bool `[b]`.
    """

    drafted: Tensor
    accepted: Tensor
    tokens: Tensor
    rows: Tensor
    finished: Tensor


class Room(NamedTuple):
    """Sizes of states that serve together: slots, arena pages, page size, table."""

    slots: int
    pages: int
    page_size: int
    pages_per_slot: int


class Drafter(NamedTuple):
    """A way to propose tokens, as pure functions over a state of its own.

    name: what reports call it.
    width: most drafts a proposal carries; 0 is sequential decoding.
    taps: target layers whose features `absorb` reads.
    init: `(params, room) -> state`, empty sequences in all slots.
    absorb: `(params, state, committed) -> state`, the state after those tokens.
    absorb_: the same in the memory of a state that the caller owns.
    propose: `(params, state, boundary, sampling) -> Proposal`; writes nothing.

    Its state registers with `fspec.state.protocol`: cut, fork, reset, canonical.
    """

    name: str
    width: int
    taps: tuple[int, ...]
    init: Callable[..., Any]
    absorb: Callable[..., Any]
    absorb_: Callable[..., Any]
    propose: Callable[..., Proposal]
