"""Canonical states: what counts, gathered, so that states can be compared.

Folding in a canonical state goes as far as the length allows, whatever reach the live
state keeps.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fspec.kernels.delta import CHUNK
from fspec.layers.decoder import TargetParams, delta_layers
from fspec.layers.deltanet import delta_scan
from fspec.state.deltanet import held_rows
from fspec.state.mtp import MTPState
from fspec.state.pages import KVPages, gather_rows
from fspec.state.protocol import canonical
from fspec.state.target import TargetState
from fspec.state.tree import host


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
        at = torch.arange(length)[-1:] % state.hidden.shape[1]
        out.append(CanonicalMTP(length, k[0], v[0], state.hidden[slot, at]))
    return tuple(out)


def _request(
    params: TargetParams, state: TargetState, slot: int, length: int
) -> CanonicalTarget:
    history = params.config.conv - 1
    start, held = held_rows(state.delta, slot, length, history)
    rows = state.delta.rows[:, slot, :held]
    fold = (length - start) // CHUNK * CHUNK
    s = state.delta.s[:, slot]
    if fold:
        whole = rows[:, : history + fold]
        layers = enumerate(delta_layers(params))
        s = torch.stack([delta_scan(w, s[i], whole[i], fold)[1] for i, w in layers])
    k, v = _rows(state.pages, slot, length)
    left = rows[:, fold:].clone()
    return CanonicalTarget(length, start + fold, k, v, s.clone(), left)


def _rows(pages: KVPages, slot: int, length: int) -> tuple[Tensor, Tensor]:
    k, v = (
        torch.stack([gather_rows(layer, pages.table[slot], length) for layer in arena])
        for arena in (pages.k, pages.v)
    )
    return k, v
