"""The target: its parameters, and one forward pass over rows after a state.

Prefill, verification and one-token decoding are this same pass. Products and
elementwise work run on all rows of all requests at once; attention and delta rule
run request by request, since requests differ in length.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fspec.config import TargetConfig
from fspec.kernels.attention import attend, gather_tiles
from fspec.kernels.product import product
from fspec.layers.attention import (
    AttentionParams,
    AttentionRows,
    attention_out,
    attention_rows,
)
from fspec.layers.deltanet import DeltaParams, delta_out, delta_scan, project
from fspec.layers.mlp import MlpParams, mlp
from fspec.layers.norm import rms_norm
from fspec.layers.rope import Rotation, rotation
from fspec.state.deltanet import held_rows
from fspec.state.target import TargetState

# static in a pytree: `torch.func` and `map_tensors` pass it by
pytree.register_constant(TargetConfig)


class LayerParams(NamedTuple):
    """One decoder layer; gains are fp32 and effective (`1 + w`)."""

    mixer: AttentionParams | DeltaParams
    mlp: MlpParams
    mixer_gain: Tensor
    mlp_gain: Tensor


class MtpParams(NamedTuple):
    """The multi-token-prediction head; embedding and head are the target's."""

    fc: Tensor
    embedding_gain: Tensor
    hidden_gain: Tensor
    layer: LayerParams
    gain: Tensor


class TargetParams(NamedTuple):
    """Everything of a target checkpoint. Weights are `[in, out]`, all of one dtype.

    `embed` is `[n, d]`, `head` `[d, n]`; where they are tied, `head` is a view of
    `embed`. `mtp` is None where there is none.
    """

    config: TargetConfig
    embed: Tensor
    layers: tuple[LayerParams, ...]
    gain: Tensor
    head: Tensor
    inv_freq: Tensor
    mtp: MtpParams | None


class Batch(NamedTuple):
    """Host-side facts of a call, one of each for every request.

    slots: where its state stands.
    lengths: its committed tokens.
    counts: its real rows.
    edges: the multiple of `CHUNK` at which the delta state is wanted.
    """

    slots: list[int]
    lengths: list[int]
    counts: list[int]
    edges: list[int]


class Trunk(NamedTuple):
    """What a forward pass yields, before anything is committed.

    hidden: `[b, t, d]`, after the final norm.
    features: `[b, t, taps * d]`, the residual stream after each tapped layer.
    k, v: `[full layer, b, t, kv, k]`.
    raw: raw rows `[delta layer, b, t, c]`.
    s: `s[delta layer][request]`, the delta state at the request's edge.

    Rows past a request's count are garbage.
    """

    hidden: Tensor
    features: Tensor
    k: Tensor
    v: Tensor
    raw: Tensor
    s: list[list[Tensor]]


def trunk(
    params: TargetParams,
    state: TargetState,
    batch: Batch,
    tokens: Int[Tensor, "b t"],
    taps: tuple[int, ...],
) -> Trunk:
    """Run the target over rows that follow each request's committed tokens.

    Args:
        params: the target.
        state: read, never written.
        batch: `state`'s slots and lengths, and how many rows of `tokens` are real.
        tokens: ids; any valid id where a row is not real.
        taps: layers whose output (the residual stream) becomes a feature, in order.
    """
    config = params.config
    b, t = tokens.shape
    by = _rotation(params, batch, t)
    x = F.embedding(tokens, params.embed).flatten(0, 1)
    k, v, raw, s, tapped = [], [], [], [], {}
    for index, layer in enumerate(params.layers):
        normed = rms_norm(x, layer.mixer_gain, config.eps)
        if isinstance(layer.mixer, AttentionParams):
            rows = attention_rows(layer.mixer, normed, by, config.eps)
            mixed = _attend(rows, len(k), state, batch, t)
            x = x + attention_out(layer.mixer, mixed, rows.gate)
            k.append(rows.k)
            v.append(rows.v)
        else:
            rows, z = project(layer.mixer, normed)
            mixed, ends = _recur(layer.mixer, rows, len(raw), state, batch, t)
            x = x + delta_out(layer.mixer, mixed, z, config.eps)
            raw.append(rows)
            s.append(ends)
        x = x + mlp(layer.mlp, rms_norm(x, layer.mlp_gain, config.eps))
        if index in taps:
            tapped[index] = x
    hidden = rms_norm(x, params.gain, config.eps)
    features = torch.cat([hidden[:, :0], *(tapped[tap] for tap in taps)], -1)
    hidden, features = (y.unflatten(0, (b, t)) for y in (hidden, features))
    k, v, raw = (torch.stack(y).unflatten(1, (b, t)) for y in (k, v, raw))
    return Trunk(hidden, features, k, v, raw, s)


def head(params: TargetParams, hidden: Float[Tensor, "*r d"]) -> Float[Tensor, "*r n"]:
    """Logits of rows of `hidden`, in the model's dtype."""
    flat = product(hidden.reshape(-1, hidden.shape[-1]), params.head)
    return flat.view(*hidden.shape[:-1], -1)


def delta_layers(params: TargetParams) -> list[DeltaParams]:
    """Parameters of the delta layers, in order."""
    mixers = (layer.mixer for layer in params.layers)
    return [mixer for mixer in mixers if isinstance(mixer, DeltaParams)]


def _rotation(params: TargetParams, batch: Batch, t: int) -> Rotation:
    device = params.inv_freq.device
    lengths = torch.tensor(batch.lengths, device=device)
    positions = (lengths[:, None] + torch.arange(t, device=device)).flatten()
    return rotation(params.inv_freq, params.config.rope.attention_factor, positions)


def _attend(
    rows: AttentionRows, layer: int, state: TargetState, batch: Batch, t: int
) -> Float[Tensor, "r h k"]:
    out = []
    pages = state.pages
    for i, (slot, length, count, _) in enumerate(zip(*batch, strict=True)):
        q, k, v = (y[i * t : i * t + count] for y in rows[:3])
        if count == 0:
            out.append(q.new_zeros(t, *q.shape[1:]))
            continue
        table = pages.table[slot]
        keys, values = (
            gather_tiles(arena[layer], table, length, new)
            for arena, new in ((pages.k, k), (pages.v, v))
        )
        out.append(_to_rows(attend(q, length, keys, values), t))
    return torch.cat(out)


def _to_rows(x: Float[Tensor, "count h x"], t: int) -> Float[Tensor, "t h x"]:
    return x if x.shape[0] == t else F.pad(x, (0, 0, 0, 0, 0, t - x.shape[0]))


def _recur(
    params: DeltaParams,
    rows: Float[Tensor, "r c"],
    layer: int,
    state: TargetState,
    batch: Batch,
    t: int,
) -> tuple[Float[Tensor, "r h v"], list[Tensor]]:
    out, ends = [], []
    history = params.conv.shape[1] - 1
    sizes = state.delta.s.shape[2], state.delta.s.shape[4]
    for i, (slot, length, count, edge) in enumerate(zip(*batch, strict=True)):
        s = state.delta.s[layer, slot]
        if count == 0:
            out.append(rows.new_zeros(t, *sizes, dtype=torch.float32))
            ends.append(s)
            continue
        start, held = held_rows(state.delta, slot, length, history)
        known = state.delta.rows[layer, slot, :held]
        every = torch.cat([known, rows[i * t : i * t + count]])
        mixed, end = delta_scan(params, s, every, max(edge - start, 0))
        out.append(_to_rows(mixed[-count:], t))
        ends.append(end)
    return torch.cat(out), ends
