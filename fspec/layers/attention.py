"""Gated full attention: projections, norms, rotation and the output gate."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fspec.kernels.product import product
from fspec.layers.gates import sigmoid
from fspec.layers.norm import rms_norm
from fspec.layers.rope import Rotation, rotate


class AttentionParams(NamedTuple):
    """Projections and head norms of one full-attention layer.

    `qkv` stacks the rows of q (per head: query dims, then gate dims), k and v. Gains
    are fp32 and effective (`1 + w`).
    """

    qkv: Tensor
    out: Tensor
    q_gain: Tensor
    k_gain: Tensor


class AttentionRows(NamedTuple):
    """A row's share of attention: `q`, `gate` [r, h, k]; `k`, `v` [r, kv, k]."""

    q: Tensor
    gate: Tensor
    k: Tensor
    v: Tensor


def attention_rows(
    params: AttentionParams, x: Float[Tensor, "r d"], by: Rotation, eps: float
) -> AttentionRows:
    """Project rows to what attention reads; keys and queries normed and rotated."""
    dim = params.q_gain.shape[0]
    heads = params.out.shape[1] // dim
    kv = (params.qkv.shape[0] // dim - 2 * heads) // 2
    packed = product(x, params.qkv)
    q_gate, k, v = packed.split([2 * heads * dim, kv * dim, kv * dim], -1)
    q, gate = q_gate.unflatten(-1, (heads, 2 * dim)).chunk(2, -1)
    q = rotate(rms_norm(q, params.q_gain, eps), by)
    k = rotate(rms_norm(k.unflatten(-1, (kv, dim)), params.k_gain, eps), by)
    return AttentionRows(q, gate, k, v.unflatten(-1, (kv, dim)))


def key_value_rows(
    params: AttentionParams, x: Float[Tensor, "r d"], by: Rotation, eps: float
) -> tuple[Float[Tensor, "r kv k"], Float[Tensor, "r kv k"]]:
    """Project rows to keys and values alone: all that a draft layer remembers."""
    dim = params.q_gain.shape[0]
    packed = product(x, params.qkv[2 * params.out.shape[1] :])
    k, v = (half.unflatten(-1, (-1, dim)) for half in packed.chunk(2, -1))
    return rotate(rms_norm(k, params.k_gain, eps), by), v


def attention_out(
    params: AttentionParams,
    mixed: Float[Tensor, "r h k"],
    gate: Float[Tensor, "r h k"],
) -> Float[Tensor, "r d"]:
    """Gate the attended values and project them back to the hidden width."""
    gated = mixed.to(gate.dtype) * sigmoid(gate).to(gate.dtype)
    return product(gated.flatten(1), params.out)
