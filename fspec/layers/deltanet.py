"""Gated DeltaNet: everything around the delta rule.

A layer's memory of recent tokens is their *raw rows*: the projections before the
convolution, with the logits of beta and decay. Convolution window, gates and outputs
are all computed from them, so they cannot disagree.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fspec.kernels.delta import scan
from fspec.kernels.product import product
from fspec.layers.gates import sigmoid, silu, softplus
from fspec.layers.norm import l2_norm, rms_norm


class DeltaParams(NamedTuple):
    """Parameters of one Gated DeltaNet layer.

    `in_proj` has the columns of q, k, v, beta logit, decay logit and output gate z, so
    that a raw row is a prefix of its product. `conv` is `[channel, tap]`, the last tap
    the current token's; `speed` is -exp(A_log). `conv`, `speed`, `dt_bias` and `gain`
    (plain w) are fp32.
    """

    in_proj: Tensor
    conv: Tensor
    speed: Tensor
    dt_bias: Tensor
    gain: Tensor
    out: Tensor


class DeltaInputs(NamedTuple):
    """What the delta rule reads of rows: q, k `[t,h,k]`, v, beta and decay `[t,h]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    decay: Tensor


def project(
    params: DeltaParams, x: Float[Tensor, "r d"]
) -> tuple[Float[Tensor, "r c"], Float[Tensor, "r z"]]:
    """Project rows to raw rows (q, k, v, beta logit, decay logit) and gate z."""
    raw = params.conv.shape[0] + 2 * params.speed.shape[0]
    packed = product(x, params.in_proj)
    rows, z = packed.split_with_sizes([raw, packed.shape[1] - raw], -1)
    return rows, z


def gates(
    params: DeltaParams, beta: Float[Tensor, "t h"], decay: Float[Tensor, "t h"]
) -> tuple[Float[Tensor, "t h"], Float[Tensor, "t h"]]:
    """Write strength in [0, 1] and log decay <= 0 from their logits, both in fp32."""
    rate = softplus(decay.float() + params.dt_bias)
    return sigmoid(beta), params.speed * rate


def delta_inputs(
    params: DeltaParams, rows: Float[Tensor, "n c"], key_dim: int
) -> DeltaInputs:
    """Convolve, gate and normalise raw rows; the first `taps - 1` are history only.

    Returns:
        Inputs of the delta rule for the other rows, heads already repeated: value head
        `h` uses key head `h // (value heads / key heads)`.
    """
    channels, taps = params.conv.shape
    heads = params.speed.shape[0]
    count = rows.shape[0] - (taps - 1)
    keys = channels - heads * params.gain.shape[0]
    mixed, beta_decay = rows.split_with_sizes([channels, 2 * heads], -1)
    # a sum over taps has one order, which conv1d has not
    windows = mixed.float().unfold(0, taps, 1)
    active = silu((windows * params.conv).sum(-1)).to(rows.dtype).float()
    both, v = active.split_with_sizes([keys, channels - keys], -1)
    both = l2_norm(both.view(count, 2, -1, key_dim))
    repeats = heads // both.shape[2]
    both = both[:, :, :, None].expand(-1, -1, -1, repeats, -1).flatten(2, 3)
    beta, decay = gates(params, *beta_decay[taps - 1 :].chunk(2, -1))
    q, k = both.unbind(1)
    return DeltaInputs(q * key_dim**-0.5, k, v.view(count, heads, -1), beta, decay)


def delta_scan(
    params: DeltaParams,
    s: Float[Tensor, "h k v"],
    rows: Float[Tensor, "n c"],
    fold: int,
) -> tuple[Float[Tensor, "t h v"], Float[Tensor, "h k v"]]:
    """Run the layer's recurrence over raw rows that begin `taps - 1` before a chunk.

    Returns:
        Outputs of all rows but the history, and `s` after the first `fold` of them.
    """
    return scan(s, *delta_inputs(params, rows, s.shape[1]), fold)


def delta_out(
    params: DeltaParams,
    mixed: Float[Tensor, "r h v"],
    z: Float[Tensor, "r z"],
    eps: float,
) -> Float[Tensor, "r d"]:
    """Norm each head's output, gate it by silu(z) and project it back."""
    normed = rms_norm(mixed.to(z.dtype), params.gain, eps).float()
    gated = normed * silu(z).view(normed.shape)
    return product(gated.to(z.dtype).flatten(1), params.out)
