"""The target's state: what has been verified, and nothing else."""

from typing import NamedTuple

import torch
from torch import Tensor

from fspec.config import TargetConfig
from fspec.errors import ShapeError, StateError
from fspec.state.deltanet import DeltaNetState, delta_state
from fspec.state.pages import KVPages, kv_pages
from fspec.state.protocol import copy_slot, cut, fork, put, reset
from fspec.state.tree import host


class TargetState(NamedTuple):
    """State of the target at length L for every slot; `pages.length` is L.

    recent: int64 `[slot, 2]`, the lengths before the last commit and before the one
        before it. A cut may reach the latter.
    slots: int64 `[b]`, the slot of each batch row.
    """

    pages: KVPages
    delta: DeltaNetState
    recent: Tensor
    slots: Tensor


def target_state(
    config: TargetConfig,
    like: Tensor,
    *,
    slots: int,
    pages: int,
    page_size: int,
    pages_per_slot: int,
    width: int,
) -> TargetState:
    """Make empty sequences in all slots, batch row i in slot i, no page reserved.

    Args:
        config: the target's sizes.
        like: a tensor of the model's dtype and device.
        slots: requests that fit.
        pages: arena pages shared by all.
        page_size: rows in a page.
        pages_per_slot: width of the page tables; with `page_size`, the context room.
        width: most drafts a block will carry.

    Raises:
        ShapeError: a count is below 1, or `width` below 0.
    """
    if width < 0:
        raise ShapeError(f"width={width} was given; drafts per block must be >= 0")
    heads = (config.kv_heads, config.head_dim)
    index = torch.arange(slots, device=like.device)
    return TargetState(
        kv_pages(
            config.full_layers, pages, page_size, slots, pages_per_slot, heads, like
        ),
        delta_state(config, slots, width, like),
        torch.zeros(slots, 2, dtype=torch.int64, device=like.device),
        index,
    )


def lengths(state: TargetState) -> list[int]:
    """Committed tokens of each batch row, on the host."""
    return host(state.pages.length[state.slots])


def starts(state: TargetState) -> list[int]:
    """Position of each batch row's delta state, on the host."""
    return host(state.delta.start[state.slots])


def widest(state: TargetState, conv: int, chunk: int) -> int:
    """Most drafts a block over this state may carry."""
    return (state.delta.rows.shape[2] - (conv - 1) - (chunk - 1)) // 2 - 1


@cut.register
def _(state: TargetState, length: Tensor) -> TargetState:
    now = state.pages.length[state.slots]
    check_reach(length, now, state.recent[state.slots, 1])
    lowered = state.pages.length.index_put((state.slots,), length)
    return state._replace(
        pages=state.pages._replace(length=lowered),
        recent=torch.minimum(state.recent, lowered[:, None]),
    )


def check_reach(length: Tensor, now: Tensor, reach: Tensor) -> None:
    """Check that a cut from `now` to `length` goes no lower than `reach`.

    Raises:
        StateError: it does, or it is not a cut.
    """
    if length.shape != now.shape or bool(((length > now) | (length < reach)).any()):
        raise StateError(
            f"cut to {host(length)} was asked of rows with {host(now)} committed "
            f"tokens; a cut reaches back two commits, here to {host(reach)}. Run "
            "the tokens again from an earlier state instead"
        )


@fork.register
def _(state: TargetState, source: int, target: int) -> TargetState:
    return state._replace(
        pages=fork(state.pages, source, target),
        delta=fork(state.delta, source, target),
        recent=copy_slot(state.recent, 0, source, target),
    )


@reset.register
def _(state: TargetState, slot: int) -> TargetState:
    return state._replace(
        pages=reset(state.pages, slot),
        delta=reset(state.delta, slot),
        recent=put(state.recent, 0, slot, 0),
    )
