"""Norm and rotation of heads on a GPU: one program a row and head."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, power
from fspec.kernels.heads.jit import heads_kernel


def norm_rotate(
    packed: Float[Tensor, "r p"], gain: Float[Tensor, "h k"], by: Any, eps: float
) -> Float[Tensor, "r h k"]:
    """Norm and rotate the first heads of `packed`; bytes: those columns in and out."""
    heads, dim = gain.shape
    out = packed.new_empty(packed.shape[0], heads, dim)
    heads_kernel[(packed.shape[0], heads)](
        packed,
        gain.contiguous(),
        by.cos,
        by.sin,
        out,
        packed.stride(0),
        eps,
        DIM=dim,
        HALF=by.cos.shape[-1],
        BLOCK=power(dim),
        **Launch(num_warps=1)._asdict(),
    )
    return out
