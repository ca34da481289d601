"""The MTP head as functions: what it remembers, and its chain of drafts."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from fspec.kernels.product import Product, lone_product, product
from fspec.layers.attention import (
    AttentionParams,
    attention_out,
    attention_rows,
    key_value_rows,
)
from fspec.layers.decoder import MtpParams, TargetParams
from fspec.layers.mlp import mlp
from fspec.layers.norm import rms_norm
from fspec.layers.rope import Rotation, rotation


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
    eps, mixer, inner = params.config.eps, _attention(mtp), mtp.layer
    at = torch.arange(keys.shape[1], keys.shape[1] + width, device=keys.device)
    turns = rotation(params.inv_freq, params.config.rope.attention_factor, at)
    drafts, logits = [boundary], []
    new_k, new_v = keys[:, :0], values[:, :0]
    for step in range(width):
        by = Rotation(*(x[step : step + 1] for x in turns))
        x = _pair(params, mtp, hidden, drafts[-1], lone_product)
        normed = rms_norm(x, inner.mixer_gain, eps)
        q, k, v, gate = attention_rows(mixer, normed, by, eps, lone_product)
        new_k = torch.cat([new_k, k.transpose(0, 1).float()], 1)
        new_v = torch.cat([new_v, v.transpose(0, 1).float()], 1)
        mixed = _attend_lone(q, (keys, new_k), (values, new_v))
        x = x + attention_out(mixer, mixed, gate, lone_product)
        normed = rms_norm(x, inner.mlp_gain, eps)
        x = x + mlp(inner.mlp, normed, lone_product)
        hidden = rms_norm(x, mtp.gain, eps)
        logits.append(lone_product(hidden, params.head))
        drafts.append(logits[-1].argmax(-1))
    return Chain(torch.cat(drafts[1:]), torch.cat(logits))


def _attend_lone(
    q: Float[Tensor, "1 h k"],
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
) -> Float[Tensor, "1 h k"]:
    # committed rows, then the chain's: nothing is copied that the pages hold. Its bits
    # are its own; only the target's rows must agree with each other
    kv = keys[0].shape[0]
    queries = q.float().view(kv, -1, q.shape[2]) * q.shape[2] ** -0.5
    scores = [torch.bmm(queries, part.transpose(1, 2)) for part in keys]
    weight = torch.cat(scores, 2).softmax(2)
    split = weight.split([part.shape[1] for part in keys], 2)
    mixed = torch.bmm(split[0], values[0]) + torch.bmm(split[1], values[1])
    return mixed.view(q.shape)


def _pair(
    params: TargetParams,
    mtp: MtpParams,
    hidden: Float[Tensor, "r d"],
    tokens: Int[Tensor, " r"],
    product: Product = product,
) -> Float[Tensor, "r d"]:
    eps = params.config.eps
    embedding = rms_norm(F.embedding(tokens, params.embed), mtp.embedding_gain, eps)
    normed = rms_norm(hidden, mtp.hidden_gain, eps)
    return product(torch.cat([embedding, normed], -1), mtp.fc)


def _attention(mtp: MtpParams) -> AttentionParams:
    assert isinstance(mtp.layer.mixer, AttentionParams)  # the loader makes no other
    return mtp.layer.mixer
