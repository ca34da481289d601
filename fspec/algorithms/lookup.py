"""Prompt lookup: drafts copied from where the last tokens occurred before."""

from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from fspec.algorithms.base import draft_widths, drafter
from fspec.errors import CapacityError
from fspec.state.protocol import canonical, copy_slot, cut, fork, put, reset
from fspec.state.target import check_reach
from fspec.state.tree import host
from fspec.types import Committed, Drafter, Proposal, Room, SamplingState

LONGEST = 4  # tokens of context that a match must share, longest first


class LookupState(NamedTuple):
    """The committed tokens: int64 `[slot, n]`, of which `length[slot]` count."""

    tokens: Tensor
    length: Tensor
    slots: Tensor


def lookup(width: int = 7) -> Drafter:
    """Make the prompt-lookup drafter, 1…15 drafts a cycle; it needs no weights.

    Raises:
        ShapeError: the width is out of range.
    """
    return drafter("lookup", width, init, absorb_, partial(propose, width))


def init(params: Any, room: Room) -> LookupState:
    """Make the state of empty sequences, with room for a full page table."""
    capacity = room.pages_per_slot * room.page_size
    device = params.embed.device
    tokens = torch.zeros(room.slots, capacity, dtype=torch.int64, device=device)
    index = torch.arange(room.slots, device=device)
    return LookupState(tokens, index * 0, index)


def absorb_(params: Any, state: LookupState, committed: Committed) -> LookupState:
    """Append the committed tokens, in place.

    Raises:
        CapacityError: they do not fit; nothing has been changed.
    """
    before = state.length[state.slots]
    after = before + committed.rows
    if int(after.max()) > state.tokens.shape[1]:
        raise CapacityError(
            f"{int(after.max())} tokens do not fit into a lookup state of "
            f"{state.tokens.shape[1]}; make it with more pages per slot"
        )
    lists = (host(x) for x in (state.slots, before, committed.rows))
    for i, (slot, length, r) in enumerate(zip(*lists, strict=True)):
        state.tokens[slot, length : length + r] = committed.tokens[i, :r]
    return state._replace(length=state.length.index_put((state.slots,), after))


def propose(
    width: int,
    params: Any,
    state: LookupState,
    boundary: Int[Tensor, " b"],
    sampling: SamplingState,
) -> Proposal:
    """Propose what followed the latest earlier occurrence of the last tokens.

    Matches of `LONGEST` tokens, the boundary included, are tried first, then shorter
    ones; without any match a request gets no drafts.
    """
    limits = host(draft_widths(sampling, width))
    tokens = boundary.new_zeros(len(boundary), width)
    widths = boundary.new_zeros(len(boundary))
    lists = host(state.slots), host(state.length[state.slots])
    for i, (slot, length) in enumerate(zip(*lists, strict=True)):
        history = torch.cat([state.tokens[slot, :length], boundary[i : i + 1]])
        found = _continuation(history, limits[i])
        tokens[i, : len(found)] = found
        widths[i] = len(found)
    return Proposal(tokens, widths)


def _continuation(history: Int[Tensor, " l"], width: int) -> Int[Tensor, " m"]:
    for size in range(min(LONGEST, len(history) - 1), 0, -1):
        windows = history[:-1].unfold(0, size, 1)
        hits = (windows == history[-size:]).all(1).nonzero()
        if len(hits):
            followed = history[int(hits[-1]) + size :]
            # a copy that reaches its own source goes on repeating it
            at = torch.arange(width, device=followed.device)
            return followed[at % len(followed)]
    return history[:0]


@cut.register
def _(state: LookupState, length: Tensor) -> LookupState:
    check_reach(length, state.length[state.slots], torch.zeros_like(length))
    return state._replace(length=state.length.index_put((state.slots,), length))


@fork.register
def _(state: LookupState, source: int, target: int) -> LookupState:
    return state._replace(
        tokens=copy_slot(state.tokens, 0, source, target),
        length=copy_slot(state.length, 0, source, target),
    )


@reset.register
def _(state: LookupState, slot: int) -> LookupState:
    return state._replace(length=put(state.length, 0, slot, 0))


@canonical.register
def _(state: LookupState, params: Any) -> tuple[Tensor, ...]:
    lists = host(state.slots), host(state.length[state.slots])
    return tuple(
        state.tokens[slot, :length] for slot, length in zip(*lists, strict=True)
    )
