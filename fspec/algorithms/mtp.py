"""The MTP drafter: the checkpoint's own head, chained."""

from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from fspec.algorithms.base import draft_widths, drafter
from fspec.errors import UnsupportedError
from fspec.layers.decoder import MtpParams, TargetParams
from fspec.layers.mtp import mtp_chain, mtp_keys
from fspec.state.mtp import MTPState
from fspec.state.pages import check_reserved, gather_rows, kv_pages, write_rows_
from fspec.state.tree import host
from fspec.types import Committed, Drafter, Proposal, Room, SamplingState


def mtp(width: int = 7) -> Drafter:
    """Make the MTP drafter with up to `width` drafts a cycle, 1…15.

    Raises:
        ShapeError: the width is out of range.
    """
    return drafter("mtp", width, partial(init, width), absorb_, partial(propose, width))


def init(width: int, params: TargetParams, room: Room) -> MTPState:
    """Make the state of empty sequences.

    Raises:
        UnsupportedError: the checkpoint has no MTP head.
    """
    _mtp(params)
    config = params.config
    heads = (config.kv_heads, config.head_dim)
    slots = room.slots
    pages = kv_pages(
        1, room.pages, room.page_size, slots, room.pages_per_slot, heads, params.embed
    )
    zeros = torch.zeros(slots, dtype=torch.int64, device=params.embed.device)
    hidden = params.embed.new_zeros(slots, 2 * (width + 1) + 1, config.hidden)
    recent = torch.stack([zeros, zeros], 1)
    index = torch.arange(slots, device=params.embed.device)
    return MTPState(pages, hidden, zeros, recent, index)


def absorb_(params: TargetParams, state: MTPState, committed: Committed) -> MTPState:
    """Pair the committed tokens with the hidden rows before them, in place.

    With r tokens at positions L…L+r−1, K/V rows L−1…L+r−2 are written and the last
    hidden row becomes the pending one. The rows' bits do not depend on how the tokens
    were grouped.

    Raises:
        CapacityError: pages are missing; nothing has been changed.
    """
    slots, rows = host(state.slots), host(committed.rows)
    lengths = host(state.length[state.slots])
    for slot, length, r in zip(slots, lengths, rows, strict=True):
        first, end = max(length - 1, 0), max(length + r - 1, 0)
        check_reserved(state.pages, slot, first, end)
    keep = state.hidden.shape[1]
    for i, (slot, length, r) in enumerate(zip(slots, lengths, rows, strict=True)):
        if r == 0:
            continue
        first = max(length - 1, 0)
        pending = state.hidden[slot, first % keep][None][: min(length, 1)]
        hidden = torch.cat([pending, committed.hidden[i, :r]])
        tokens = committed.tokens[i, 1 - min(length, 1) : r]
        at = torch.arange(first, first + len(tokens), device=tokens.device)
        if len(tokens):
            k, v = mtp_keys(params, _mtp(params), hidden[:-1], tokens, at)
            write_rows_(state.pages, slot, first, k[None], v[None])
        since = max(length, length + r - keep)
        last = torch.arange(since, length + r, device=state.hidden.device)
        state.hidden[slot, last % keep] = committed.hidden[i, last - length]
    after = state.length[state.slots] + committed.rows
    return _lengthen(state, after, committed.rows)


def propose(
    width: int,
    params: TargetParams,
    state: MTPState,
    boundary: Int[Tensor, " b"],
    sampling: SamplingState,
) -> Proposal:
    """Draft after each boundary; a request without committed tokens gets none."""
    lengths = state.length[state.slots]
    widths = draft_widths(sampling, width) * (lengths > 0)
    keep = state.hidden.shape[1]
    tokens = boundary.new_zeros(len(boundary), width)
    rows = zip(host(state.slots), host(lengths), host(widths), strict=True)
    for i, (slot, length, w) in enumerate(rows):
        if w == 0:
            continue
        keys, values = (
            gather_rows(arena[0], state.pages.table[slot], length - 1)
            for arena in (state.pages.k, state.pages.v)
        )
        pending = state.hidden[slot, (length - 1) % keep][None]
        chain = mtp_chain(
            params, _mtp(params), keys, values, pending, boundary[i : i + 1], w
        )
        tokens[i, :w] = chain.tokens
    return Proposal(tokens, widths)


def _lengthen(state: MTPState, length: Tensor, rows: Tensor) -> MTPState:
    at = (state.slots,)
    before = torch.stack([state.length[state.slots], state.recent[state.slots, 0]], 1)
    recent = torch.where((rows > 0)[:, None], before, state.recent[state.slots])
    # a long run of known tokens leaves fewer hidden rows than it was long
    recent = recent.maximum((length + 1 - state.hidden.shape[1])[:, None])
    lengths = state.length.index_put(at, length)
    pages = state.pages._replace(length=(lengths - 1).clamp(min=0))
    return state._replace(
        pages=pages, length=lengths, recent=state.recent.index_put(at, recent)
    )


def _mtp(params: TargetParams) -> MtpParams:
    if params.mtp is None:
        raise UnsupportedError(
            "the MTP drafter was asked for; this checkpoint has no mtp.* tensors. Use "
            "--drafter lookup or none, or a checkpoint that kept its MTP head"
        )
    return params.mtp
