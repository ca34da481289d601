"""The target: its parameters, and one forward pass over rows after a state.

Prefill, verification and one-token decoding are this same pass, over all rows of all
requests at once. What depends on the device is `params.kernels`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fspec.config import TargetConfig
from fspec.kernels import Kernels
from fspec.kernels.packed import Weight
from fspec.layers.attention import AttentionParams, attention_out, attention_rows
from fspec.layers.deltanet import DeltaParams, delta_out, project
from fspec.layers.mlp import MlpParams, mlp
from fspec.layers.rope import rotation
from fspec.state.target import TargetState
from fspec.types import Batch, Rotation

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

    fc: Weight
    embedding_gain: Tensor
    hidden_gain: Tensor
    layer: LayerParams
    gain: Tensor


class TargetParams(NamedTuple):
    """Everything of a target checkpoint. Weights are `[in, out]`, all of one dtype.

    `kernels` are those of the device that holds the tensors. `embed` is `[n, d]`,
    `head` `[d, n]`; where they are tied, `head` is a view of `embed`. `mtp` is None
    where there is none.
    """

    config: TargetConfig
    kernels: Kernels
    embed: Tensor
    layers: tuple[LayerParams, ...]
    gain: Tensor
    head: Weight
    inv_freq: Tensor
    mtp: MtpParams | None


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
    config, ops, pages = params.config, params.kernels, state.pages
    b, t = tokens.shape
    plan = ops.plan(batch, t, config.heads, pages.k, pages.table)
    by = _rotation(params, batch, t)
    x = F.embedding(tokens, params.embed).flatten(0, 1)
    normed = ops.rms_norm(x, params.layers[0].mixer_gain, config.eps)
    gains = [*(layer.mixer_gain for layer in params.layers[1:]), params.gain]
    k, v, raw, s, tapped = [], [], [], [], {}
    for index, (layer, gain) in enumerate(zip(params.layers, gains, strict=True)):
        if isinstance(layer.mixer, AttentionParams):
            rows = attention_rows(ops, layer.mixer, normed, by, config.eps)
            mixed = ops.attend(plan, len(k), *rows[:3], pages.k, pages.v, pages.table)
            y = attention_out(ops, layer.mixer, mixed, rows.gate)
            k.append(rows.k)
            v.append(rows.v)
        else:
            mixer, delta = layer.mixer, state.delta
            rows, z = project(ops, mixer, normed)
            mixed, ends = ops.delta(
                plan, len(raw), *mixer.recurrence, rows, delta.s, delta.rows
            )
            y = delta_out(ops, mixer, mixed, z, config.eps)
            raw.append(rows)
            s.append(ends)
        x, normed = ops.add_norm(x, y, layer.mlp_gain, config.eps)
        y = mlp(ops, layer.mlp, normed)
        x, normed = ops.add_norm(x, y, gain, config.eps)
        if index in taps:
            tapped[index] = x
    features = torch.cat([normed[:, :0], *(tapped[tap] for tap in taps)], -1)
    hidden, features = (y.unflatten(0, (b, t)) for y in (normed, features))
    k, v, raw = (torch.stack(y).unflatten(1, (b, t)) for y in (k, v, raw))
    return Trunk(hidden, features, k, v, raw, s)


def head(params: TargetParams, hidden: Float[Tensor, "*r d"]) -> Float[Tensor, "*r n"]:
    """Logits of rows of `hidden`, in the model's dtype."""
    flat = params.kernels.product(hidden.reshape(-1, hidden.shape[-1]), params.head)
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
