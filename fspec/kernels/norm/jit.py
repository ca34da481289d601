"""Device code of RMSNorm."""

import triton
import triton.language as tl


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
