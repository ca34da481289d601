"""State of the MTP drafter: its K/V rows, and the hidden rows still to be paired."""

from typing import NamedTuple

import torch
from torch import Tensor

from fspec.state.pages import KVPages
from fspec.state.protocol import copy_slot, cut, fork, put, reset
from fspec.state.target import check_reach


class MTPState(NamedTuple):
    """The MTP head after L committed tokens; it depends on those alone.

    pages: one layer; row p is of (hidden of p, token p + 1), so L − 1 rows count.
    hidden: `[slot, n, d]`, the target's hidden of position p at `p % n`, for the last
        `n = 2 (width + 1) + 1` positions. The one at L − 1 waits for its token.
    length: int64 `[slot]`, L.
    recent: int64 `[slot, 2]`, as in the target's state.
    slots: int64 `[b]`, the slot of each batch row.
    """

    pages: KVPages
    hidden: Tensor
    length: Tensor
    recent: Tensor
    slots: Tensor


@cut.register
def _(state: MTPState, length: Tensor) -> MTPState:
    check_reach(length, state.length[state.slots], state.recent[state.slots, 1])
    lowered = state.length.index_put((state.slots,), length)
    rows = (lowered - 1).clamp(min=0)
    return state._replace(
        pages=state.pages._replace(length=rows),
        length=lowered,
        recent=torch.minimum(state.recent, lowered[:, None]),
    )


@fork.register
def _(state: MTPState, source: int, target: int) -> MTPState:
    return state._replace(
        pages=fork(state.pages, source, target),
        hidden=copy_slot(state.hidden, 0, source, target),
        length=copy_slot(state.length, 0, source, target),
        recent=copy_slot(state.recent, 0, source, target),
    )


@reset.register
def _(state: MTPState, slot: int) -> MTPState:
    return state._replace(
        pages=reset(state.pages, slot),
        hidden=put(state.hidden, 0, slot, 0),
        length=put(state.length, 0, slot, 0),
        recent=put(state.recent, 0, slot, 0),
    )
