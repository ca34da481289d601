"""The MTP head as functions: what it remembers, and its chain of drafts."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from fspec.kernels import Kernels
from fspec.kernels.packed import Weight
from fspec.layers.attention import AttentionParams, key_value_rows, split_rows
from fspec.layers.decoder import MtpParams, TargetParams
from fspec.layers.rope import rotation
from fspec.types import Rotation


class Chain(NamedTuple):
    """Drafts of one request: tokens int64 `[w]` and their logits `[w, n]`."""

    tokens: Tensor
    logits: Tensor


def mtp_keys(
    params: TargetParams,
    mtp: MtpParams,
    hidden: Float[Tensor, "r d"],
    tokens: Int[Tensor, " r"],
    positions: Int[Tensor, " r"],
) -> tuple[Float[Tensor, "r kv k"], Float[Tensor, "r kv k"]]:
    """K/V rows of pairs (hidden at a position, the token after it)."""
    ops, eps = params.kernels, params.config.eps
    x = _pair(params, mtp, hidden, tokens, ops.product)
    by = rotation(params.inv_freq, params.config.rope.attention_factor, positions)
    normed = ops.rms_norm(x, mtp.layer.mixer_gain, eps)
    return key_value_rows(ops, _attention(mtp), normed, by, eps)


def mtp_chain(
    params: TargetParams,
    mtp: MtpParams,
    keys: Float[Tensor, "kv n k"],
    values: Float[Tensor, "kv n k"],
    hidden: Float[Tensor, "1 d"],
    boundary: Int[Tensor, " 1"],
    width: int,
) -> Chain:
    """Draft `width` tokens after `boundary`, greedily.

    Step 1 pairs the target's last hidden row with the boundary; step j + 1 pairs the
    head's own normed output of step j with the token it drafted. The chain's K/V rows
    live in this call only. A chain's row always comes alone, so it may take the
    library's fused operations: its bits need not agree with any other form.
    Differentiable in `params`, `mtp`, `keys`, `values` and `hidden`.

    Args:
        params: the target, whose embedding, head and rotation are shared.
        mtp: the head.
        keys: K rows 0…n−1 of the head's layer.
        values: V rows likewise.
        hidden: the target's hidden row of position n, after its final norm.
        boundary: the token at position n + 1.
        width: drafts, at least 1.
    """
    ops, eps = params.kernels, params.config.eps
    at = torch.arange(keys.shape[1], keys.shape[1] + width, device=keys.device)
    turns = rotation(params.inv_freq, params.config.rope.attention_factor, at)
    drafts, logits = [boundary], []
    for step in range(width):
        by = Rotation(*(x[step : step + 1] for x in turns))
        x = _pair(params, mtp, hidden, drafts[-1], ops.lone_product)
        x, keys, values = _lone_layer(ops, mtp, x, keys, values, by, eps)
        hidden = ops.rms_norm(x, mtp.gain, eps)
        logits.append(ops.lone_product(hidden, params.head))
        drafts.append(logits[-1].argmax(-1))
    return Chain(torch.cat(drafts[1:]), torch.cat(logits))


def _lone_layer(
    ops: Kernels,
    mtp: MtpParams,
    x: Float[Tensor, "1 d"],
    keys: Float[Tensor, "kv n k"],
    values: Float[Tensor, "kv n k"],
    by: Rotation,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    layer, mixer = mtp.layer, _attention(mtp)
    normed = ops.rms_norm(x, layer.mixer_gain, eps)
    packed = ops.lone_product(normed, mixer.in_proj)
    q, k, v, gate = split_rows(ops, mixer, packed, by, eps)
    keys = torch.cat([keys, k.transpose(0, 1)], 1)
    values = torch.cat([values, v.transpose(0, 1)], 1)
    grouped = q.view(1, keys.shape[0], -1, q.shape[2])
    mixed = F.scaled_dot_product_attention(grouped, keys[None], values[None])
    y = ops.lone_product(mixed.reshape(gate.shape) * gate.sigmoid(), mixer.out)
    x, normed = ops.add_norm(x, y, layer.mlp_gain, eps)
    gate, up = ops.lone_product(normed, layer.mlp.gate_up).chunk(2, -1)
    return x + ops.lone_product(F.silu(gate) * up, layer.mlp.down), keys, values


def _pair(
    params: TargetParams,
    mtp: MtpParams,
    hidden: Float[Tensor, "r d"],
    tokens: Int[Tensor, " r"],
    product: Callable[[Tensor, Weight], Tensor],
) -> Float[Tensor, "r d"]:
    ops, eps = params.kernels, params.config.eps
    embedding = F.embedding(tokens, params.embed)
    embedding = ops.rms_norm(embedding, mtp.embedding_gain, eps)
    normed = ops.rms_norm(hidden, mtp.hidden_gain, eps)
    return product(torch.cat([embedding, normed], -1), mtp.fc)


def _attention(mtp: MtpParams) -> AttentionParams:
    assert isinstance(mtp.layer.mixer, AttentionParams)  # the loader makes no other
    return mtp.layer.mixer
