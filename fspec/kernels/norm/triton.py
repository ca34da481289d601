"""RMSNorm on a GPU, with the residual sum before it: one program a row."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, power


@triton.jit
def norm_kernel(
    x,
    y,
    gain,
    total,
    out,
    dim,
    x_row,
    y_row,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row of `total = x + y` in their dtype, and its norm from that rounded sum."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < dim
    a = tl.load(x + row * x_row + i, mask=inside, other=0.0)
    if ADD:
        b = tl.load(y + row * y_row + i, mask=inside, other=0.0)
        a = (a.to(tl.float32) + b.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(total + row * dim + i, a, mask=inside)
    a = a.to(tl.float32)
    scale = tl.rsqrt(tl.sum(a * a, 0) / dim + eps)
    normed = a * scale * tl.load(gain + i, mask=inside, other=0.0)
    tl.store(out + row * dim + i, normed.to(out.dtype.element_ty), mask=inside)


def _run(
    x: Tensor, y: Tensor | None, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    rows, dim = x.shape
    total = x if y is None else x.new_empty(rows, dim)
    out = x.new_empty(rows, dim)
    block = power(dim)
    other = x if y is None else y
    norm_kernel[(rows,)](
        x,
        other,
        gain,
        total,
        out,
        dim,
        x.stride(0),
        other.stride(0),
        eps,
        ADD=y is not None,
        BLOCK=block,
        **Launch(num_warps=min(max(block // 512, 1), 8))._asdict(),
    )
    return total, out


def rms_norm(
    x: Float[Tensor, "r d"], gain: Float[Tensor, " d"], eps: float
) -> Float[Tensor, "r d"]:
    """Norm rows; bytes: x once in, once out."""
    return _run(x, None, gain, eps)[1]


def add_norm(
    x: Float[Tensor, "r d"],
    y: Float[Tensor, "r d"],
    gain: Float[Tensor, " d"],
    eps: float,
) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r d"]]:
    """Add a layer's output to the residual and norm the sum; bytes: two in, two out."""
    return _run(x, y, gain, eps)
