"""A drafter whose drafts the test decides: so many right ones, then wrong ones."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import fspec
from fspec.algorithms.base import draft_widths
from fspec.state.protocol import canonical, cut
from fspec.types import Committed, Proposal, Room, SamplingState


class ScriptState(NamedTuple):
    """Committed tokens of each slot; the script goes by them alone."""

    length: Tensor
    slots: Tensor


@cut.register
def _(state: ScriptState, length: Tensor) -> ScriptState:
    return state._replace(length=state.length.index_put((state.slots,), length))


@canonical.register
def _(state: ScriptState, params: Any) -> tuple[int, ...]:
    return tuple(state.length[state.slots].tolist())


def scripted(
    width: int, truth: list[list[int]], pattern: list[int], vocab: int
) -> fspec.Drafter:
    """Draft `pattern[L % len]` true tokens after length L, then wrong ones.

    `truth[row]` is the whole right sequence of a batch row, prompt included.
    """

    def init(params: Any, room: Room) -> ScriptState:
        index = torch.arange(room.slots, device=params.embed.device)
        return ScriptState(index * 0, index)

    def absorb_(params: Any, state: ScriptState, committed: Committed) -> ScriptState:
        after = state.length[state.slots] + committed.rows
        return state._replace(length=state.length.index_put((state.slots,), after))

    def propose(
        params: Any, state: ScriptState, boundary: Tensor, sampling: SamplingState
    ) -> Proposal:
        rows = []
        for row, length in enumerate(state.length[state.slots].tolist()):
            right = truth[row][length + 1 : length + 1 + width]
            right += [0] * (width - len(right))
            keep = pattern[length % len(pattern)]
            rows.append(
                [t if j < keep else (t + 1) % vocab for j, t in enumerate(right)]
            )
        return Proposal(boundary.new_tensor(rows), draft_widths(sampling, width))

    return fspec.drafter("scripted", width, init, absorb_, propose)
