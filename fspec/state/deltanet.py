"""State of the Gated DeltaNet layers: `S` at a multiple of the chunk, raw rows on."""

from typing import NamedTuple

import torch
from torch import Tensor

from fspec.config import TargetConfig
from fspec.kernels.delta import CHUNK
from fspec.layers.deltanet import DeltaParams, delta_scan
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


def held_rows(
    state: DeltaNetState, slot: int, length: int, history: int
) -> tuple[int, int]:
    """Position of a slot's `S`, and how many raw rows it holds at `length`."""
    start = int(state.start[slot])
    return start, history + length - start


def append_rows_(
    state: DeltaNetState,
    params: list[DeltaParams],
    slot: int,
    length: int,
    rows: Tensor,
    keep: int,
    history: int,
) -> None:
    """Append a slot's new raw rows `[layer, r, channel]`, folding what may go.

    Chunks that end at or below `keep`, the lowest length a cut may reach, are folded
    into `S`, and rows before the last of them are dropped. `history` is the
    convolution's, taps - 1.
    """
    start, held = held_rows(state, slot, length, history)
    fold = (keep - start) // CHUNK * CHUNK
    if fold <= 0:
        state.rows[:, slot, held : held + rows.shape[1]] = rows
        return
    every = torch.cat([state.rows[:, slot, :held], rows], 1)
    for layer, weights in enumerate(params):
        _, s = delta_scan(weights, state.s[layer, slot], every[layer, : history + fold])
        state.s[layer, slot] = s
    left = every[:, fold:]
    state.rows[:, slot, : left.shape[1]] = left
    state.start[slot] = start + fold


def replace_rows_(
    state: DeltaNetState, slot: int, s: Tensor, rows: Tensor, start: int
) -> None:
    """Set a slot to `S` `[layer, h, k, v]` at `start` and the raw rows around it."""
    state.s[:, slot] = s
    state.rows[:, slot, : rows.shape[1]] = rows
    state.start[slot] = start


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
