"""Gated full attention: projections, norms, rotation and the output gate."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fspec.kernels import Kernels
from fspec.kernels.packed import Weight, columns
from fspec.types import Rotation


class AttentionParams(NamedTuple):
    """Projections and head norms of one full-attention layer.

    in_proj: `[d, …]`, columns of q of all heads, then k, v and the gate.
    out: `[h * k, d]`, the output projection.
    gain: fp32 and effective (`1 + w`), `[query and key heads, dim]`.
    """

    in_proj: Weight
    out: Weight
    gain: Tensor


class AttentionRows(NamedTuple):
    """A row's share of attention: q `[r,h,k]`; k, v `[r,kv,k]`; gate `[r,h*k]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor


def attention_rows(
    ops: Kernels,
    params: AttentionParams,
    x: Float[Tensor, "r d"],
    by: Rotation,
    eps: float,
) -> AttentionRows:
    """Project rows to what attention reads; keys and queries normed and rotated."""
    return split_rows(ops, params, ops.product(x, params.in_proj), by, eps)


def split_rows(
    ops: Kernels,
    params: AttentionParams,
    packed: Float[Tensor, "r p"],
    by: Rotation,
    eps: float,
) -> AttentionRows:
    """Take a product with `in_proj` apart; norm and rotate its keys and queries."""
    both, dim = params.gain.shape
    queries = params.out.shape[0]
    keys = both * dim - queries
    sizes = [queries + keys, keys, queries]
    heads, v, gate = packed.split_with_sizes(sizes, -1)
    turned = ops.norm_rotate(heads, params.gain, by, eps)
    q, k = turned.split_with_sizes([queries // dim, keys // dim], 1)
    return AttentionRows(q, k, v.view(-1, keys // dim, dim), gate)


def key_value_rows(
    ops: Kernels,
    params: AttentionParams,
    x: Float[Tensor, "r d"],
    by: Rotation,
    eps: float,
) -> tuple[Float[Tensor, "r kv k"], Float[Tensor, "r kv k"]]:
    """Project rows to keys and values alone: all that a draft layer remembers."""
    both, dim = params.gain.shape
    queries = params.out.shape[0]
    weight = columns(params.in_proj, queries, 2 * both * dim - queries)
    k, v = ops.product(x, weight).chunk(2, -1)
    turned = ops.norm_rotate(k, params.gain[queries // dim :], by, eps)
    return turned, v.view(len(x), -1, dim)


def attention_out(
    ops: Kernels,
    params: AttentionParams,
    mixed: Float[Tensor, "r h k"],
    gate: Float[Tensor, "r q"],
) -> Float[Tensor, "r d"]:
    """Gate the attended values and project them back to the hidden width."""
    return ops.product(ops.sigmoid_gate(mixed.flatten(1), gate), params.out)
