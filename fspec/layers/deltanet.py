"""Gated DeltaNet: the projections around its recurrence.

A layer's memory of recent tokens is their *raw rows*: the projections before the
convolution, with the logits of beta and decay (`fspec/kernels/delta`).
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fspec.kernels import Kernels
from fspec.kernels.packed import Weight


class DeltaParams(NamedTuple):
    """Parameters of one Gated DeltaNet layer.

    `in_proj` has the columns of q, k, v, beta logit, decay logit and output gate z, so
    that a raw row is a prefix of its product. `conv` is `[channel, tap]`, the last tap
    the current token's; `speed` is -exp(A_log). `conv`, `speed`, `dt_bias` and `gain`
    (plain w) are fp32.
    """

    in_proj: Weight
    conv: Tensor
    speed: Tensor
    dt_bias: Tensor
    gain: Tensor
    out: Weight

    @property
    def recurrence(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the recurrence reads: conv, speed and dt_bias."""
        return self.conv, self.speed, self.dt_bias


def project(
    ops: Kernels, params: DeltaParams, x: Float[Tensor, "r d"]
) -> tuple[Float[Tensor, "r c"], Float[Tensor, "r z"]]:
    """Project rows to raw rows (q, k, v, beta logit, decay logit) and gate z."""
    raw = params.conv.shape[0] + 2 * params.speed.shape[0]
    packed = ops.product(x, params.in_proj)
    rows, z = packed.split_with_sizes([raw, packed.shape[1] - raw], -1)
    return rows, z


def delta_out(
    ops: Kernels,
    params: DeltaParams,
    mixed: Float[Tensor, "r h v"],
    z: Float[Tensor, "r z"],
    eps: float,
) -> Float[Tensor, "r d"]:
    """Norm each head's output, gate it by silu(z) and project it back."""
    return ops.product(ops.norm_gate(mixed, z, params.gain, eps), params.out)
