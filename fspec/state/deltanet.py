"""State of the Gated DeltaNet layers: `S` at a multiple of the chunk, raw rows on."""

from typing import NamedTuple

import torch
from torch import Tensor

from fspec.config import TargetConfig
from fspec.kernels.delta import CHUNK
from fspec.state.protocol import copy_slot, fork, put, reset


class DeltaNetState(NamedTuple):
    """What the delta layers remember of every slot.

    s: fp32 `[layer, slot, value head, key dim, value dim]`, after rows 0…start−1.
    rows: raw rows `[layer, slot, n, channel]` of positions start−(taps−1)… ; zeros
        below position 0, garbage from the length on.
    start: int64 `[slot]`, a multiple of `CHUNK`, at most any length that a cut may
        still reach.

    Rollback within reach is lowering the length: nothing here changes.
    """

    s: Tensor
    rows: Tensor
    start: Tensor


def delta_state(
    config: TargetConfig, slots: int, width: int, like: Tensor
) -> DeltaNetState:
    """Make the state of empty sequences, for blocks of up to `width` drafts.

    Rows have room for the convolution's history, a begun chunk and two whole blocks.
    """
    capacity = config.conv - 1 + CHUNK - 1 + 2 * (width + 1)
    channels = config.conv_channels + 2 * config.value_heads
    layers = config.delta_layers
    sizes = (config.value_heads, config.key_dim, config.value_dim)
    return DeltaNetState(
        like.new_zeros(layers, slots, *sizes, dtype=torch.float32),
        like.new_zeros(layers, slots, capacity, channels),
        torch.zeros(slots, dtype=torch.int64, device=like.device),
    )


def append_rows_(
    state: DeltaNetState,
    slot: int,
    held: int,
    rows: Tensor,
    s: list[Tensor],
    start: int,
    edge: int,
) -> None:
    """Append a slot's new raw rows `[layer, r, channel]`, and fold up to `edge`.

    Args:
        state: written in place.
        slot: whose rows.
        held: raw rows that count before them, the convolution's history included.
        rows: raw rows of the new tokens.
        s: every layer's state at `edge`.
        start: where the slot's state stands.
        edge: a multiple of the chunk that no cut will go below. Where it lies past
            `start`, `s` becomes the state and older rows are dropped.
    """
    fold = edge - start
    if fold <= 0:
        state.rows[:, slot, held : held + rows.shape[1]] = rows
        return
    left = torch.cat([state.rows[:, slot, :held], rows], 1)[:, fold:]
    state.s[:, slot] = torch.stack(s)
    state.rows[:, slot, : left.shape[1]] = left
    state.start[slot] = edge


@fork.register
def _(state: DeltaNetState, source: int, target: int) -> DeltaNetState:
    return DeltaNetState(
        copy_slot(state.s, 1, source, target),
        copy_slot(state.rows, 1, source, target),
        copy_slot(state.start, 0, source, target),
    )


@reset.register
def _(state: DeltaNetState, slot: int) -> DeltaNetState:
    # zeros below position 0 are part of the sequence: the convolution reads them
    return DeltaNetState(
        put(state.s, 1, slot, 0),
        put(state.rows, 1, slot, 0),
        put(state.start, 0, slot, 0),
    )
