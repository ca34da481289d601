"""The MTP head as functions: what it remembers, and its chain of drafts."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from fspec.kernels.attention import attend, key_tiles
from fspec.kernels.product import product
from fspec.layers.attention import (
    AttentionParams,
    attention_out,
    attention_rows,
    key_value_rows,
)
from fspec.layers.decoder import MtpParams, TargetParams, head
from fspec.layers.mlp import mlp
from fspec.layers.norm import rms_norm
from fspec.layers.rope import rotation


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
    x = _pair(params, mtp, hidden, tokens)
    by = rotation(params.inv_freq, params.config.rope.attention_factor, positions)
    normed = rms_norm(x, mtp.layer.mixer_gain, params.config.eps)
    return key_value_rows(_attention(mtp), normed, by, params.config.eps)


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
    live in this call only. Differentiable in `params`, `mtp`, `keys`, `values` and
    `hidden`.

    Args:
        params: the target, whose embedding, head and rotation are shared.
        mtp: the head.
        keys: K rows 0…n−1 of the head's layer.
        values: V rows likewise.
        hidden: the target's hidden row of position n, after its final norm.
        boundary: the token at position n + 1.
        width: drafts, at least 1.
    """
    start, tokens, logits = keys.shape[1], [boundary], []
    mixer, eps = _attention(mtp), params.config.eps
    new_k, new_v = keys[:, :0], values[:, :0]
    for step in range(width):
        x = _pair(params, mtp, hidden, tokens[-1])
        at = torch.tensor([start + step], device=x.device)
        by = rotation(params.inv_freq, params.config.rope.attention_factor, at)
        normed = rms_norm(x, mtp.layer.mixer_gain, eps)
        rows = attention_rows(mixer, normed, by, eps)
        new_k = torch.cat([new_k, rows.k.transpose(0, 1)], 1)
        new_v = torch.cat([new_v, rows.v.transpose(0, 1)], 1)
        mixed = attend(rows.q, at, key_tiles(keys, new_k), key_tiles(values, new_v))
        x = x + attention_out(mixer, mixed, rows.gate)
        x = x + mlp(mtp.layer.mlp, rms_norm(x, mtp.layer.mlp_gain, eps))
        hidden = rms_norm(x, mtp.gain, eps)
        logits.append(head(params, hidden))
        tokens.append(logits[-1].argmax(-1))
    return Chain(torch.cat(tokens[1:]), torch.cat(logits))


def _pair(
    params: TargetParams,
    mtp: MtpParams,
    hidden: Float[Tensor, "r d"],
    tokens: Int[Tensor, " r"],
) -> Float[Tensor, "r d"]:
    eps = params.config.eps
    embedding = rms_norm(F.embedding(tokens, params.embed), mtp.embedding_gain, eps)
    normed = rms_norm(hidden, mtp.hidden_gain, eps)
    return product(torch.cat([embedding, normed], -1), mtp.fc)


def _attention(mtp: MtpParams) -> AttentionParams:
    assert isinstance(mtp.layer.mixer, AttentionParams)  # the loader makes no other
    return mtp.layer.mixer
