"""Canonical states: what counts, gathered, so that states can be compared.

Folding in a canonical state goes as far as the length allows, whatever reach the live
state keeps.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fspec.kernels.delta import CHUNK
from fspec.layers.decoder import TargetParams, delta_layers
from fspec.state.mtp import MTPState
from fspec.state.pages import KVPages, gather_rows
from fspec.state.protocol import canonical
from fspec.state.target import TargetState
from fspec.state.tree import host
from fspec.types import Batch


class CanonicalTarget(NamedTuple):
    """One request: k, v `[layer, kv, L, dim]`; s at `start`; rows from there on."""

    length: int
    start: int
    k: Tensor
    v: Tensor
    s: Tensor
    rows: Tensor


class CanonicalMTP(NamedTuple):
    """One request: k, v `[kv, L − 1, dim]`; the pending hidden row `[0 or 1, d]`."""

    length: int
    k: Tensor
    v: Tensor
    pending: Tensor


@canonical.register
def _(state: TargetState, params: TargetParams) -> tuple[CanonicalTarget, ...]:
    slots = host(state.slots)
    lengths = host(state.pages.length[state.slots])
    return tuple(
        _request(params, state, slot, length)
        for slot, length in zip(slots, lengths, strict=True)
    )


@canonical.register
def _(state: MTPState, params: TargetParams) -> tuple[CanonicalMTP, ...]:
    out: list[CanonicalMTP] = []
    for slot in host(state.slots):
        length = int(state.length[slot])
        k, v = _rows(state.pages, slot, max(length - 1, 0))
        at = torch.arange(length, device=k.device)[-1:] % state.hidden.shape[1]
        out.append(CanonicalMTP(length, k[0], v[0], state.hidden[slot, at]))
    return tuple(out)


def _request(
    params: TargetParams, state: TargetState, slot: int, length: int
) -> CanonicalTarget:
    history = params.config.conv - 1
    start = int(state.delta.start[slot])
    rows = state.delta.rows[:, slot, : history + length - start]
    fold = (length - start) // CHUNK * CHUNK
    s = state.delta.s[:, slot]
    if fold:
        s = _folded(params, state, slot, start, rows[:, history : history + fold])
    k, v = _rows(state.pages, slot, length)
    left = rows[:, fold:].clone()
    return CanonicalTarget(length, start + fold, k, v, s.clone(), left)


def _folded(
    params: TargetParams, state: TargetState, slot: int, start: int, rows: Tensor
) -> Tensor:
    """Every layer's state behind `rows`, as if they came in a call of their own."""
    ops, count = params.kernels, rows.shape[1]
    batch = Batch([slot], [start], [count], [start + count], [start])
    pages, delta = state.pages, state.delta
    plan = ops.plan(batch, count, params.config.heads, pages.k, pages.table)
    ends = [
        ops.delta(plan, i, *mixer.recurrence, rows[i], delta.s, delta.rows)[1][0]
        for i, mixer in enumerate(delta_layers(params))
    ]
    return torch.stack(ends)


def _rows(pages: KVPages, slot: int, length: int) -> tuple[Tensor, Tensor]:
    k, v = (
        torch.stack([gather_rows(layer, pages.table[slot], length) for layer in arena])
        for arena in (pages.k, pages.v)
    )
    return k, v
