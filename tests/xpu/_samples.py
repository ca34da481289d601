"""Small kernels that prove the check: a right one, and the ways to be wrong."""

# as in pyproject.toml: Triton's own types do not fit its kernels
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def scale_kernel(x, w, y, inner, BLOCK: tl.constexpr, MISTAKE: tl.constexpr):
    """One row a program, y = x / rms(x) * w, and mistakes to choose from."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    live = at < inner
    read = live
    if MISTAKE == "reads behind the row":
        read = at < inner + 1
    value = tl.load(x + row * inner + at, mask=read, other=0.0).to(tl.float32)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / inner + 1e-6)
    value = value * tl.load(w + at, mask=live, other=0.0).to(tl.float32)
    if MISTAKE == "wrong value":
        value = tl.where(at == 7, value * 1.25, value)
    if MISTAKE == "forgets an element":
        live = live & (at != 7)
    if MISTAKE == "writes behind the row":
        live = at < inner + 1
    tl.store(y + row * inner + at, value.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    x,
    w,
    y,
    rows,
    inner,
    outer,
    ROWS: tl.constexpr,
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
    PARTS: tl.constexpr,
):
    """y = x w; the sum over `inner` is cut into PARTS, each summed on its own."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    term = tl.arange(0, INNER)
    total = tl.zeros([ROWS, OUTER], tl.float32)
    for part in tl.static_range(PARTS):
        some = tl.zeros([ROWS, OUTER], tl.float32)
        for k in range(part * inner // PARTS, (part + 1) * inner // PARTS, INNER):
            left = tl.load(
                x + row[:, None] * inner + (k + term)[None, :],
                mask=(row < rows)[:, None],
                other=0.0,
            )
            right = tl.load(w + (k + term)[:, None] * outer + col[None, :])
            some = tl.dot(left, right, some, input_precision="ieee")
        total += some
    at = y + row[:, None] * outer + col[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=(row < rows)[:, None])


@triton.jit
def undefined_kernel(x, BLOCK: tl.constexpr):
    """Uses a name that is nowhere."""
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + nowhere)  # noqa: F821 # pyright: ignore


@triton.jit
def ptx_kernel(x, BLOCK: tl.constexpr):
    """Holds NVIDIA's assembly."""
    at = tl.arange(0, BLOCK)
    moved = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;",
        "=r,r",
        [tl.load(x + at)],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    tl.store(x + at, moved)


@triton.jit
def turn_kernel(x, y, SIDE: tl.constexpr):
    """Transposes a square, through shared memory of the square's size."""
    i = tl.arange(0, SIDE)
    square = tl.load(x + i[:, None] * SIDE + i[None, :])
    tl.store(y + i[:, None] + i[None, :] * SIDE, square)


def turn(x: Tensor) -> Tensor:
    """Launch `turn_kernel`."""
    y = torch.empty_like(x)
    turn_kernel[(1,)](x, y, SIDE=x.shape[0], num_warps=16)
    return y


def scale(x: Tensor, w: Tensor, mistake: str = "", block: int | None = None) -> Tensor:
    """Launch `scale_kernel`."""
    rows, inner = x.shape
    y = torch.empty_like(x)
    size = block or triton.next_power_of_2(inner + 1)
    scale_kernel[(rows,)](x, w, y, inner, BLOCK=size, MISTAKE=mistake)
    return y


def product(
    x: Tensor, w: Tensor, tile: tuple[int, int, int] = (8, 32, 32), parts: int = 1
) -> Tensor:
    """Launch `product_kernel`."""
    (rows, inner), outer = x.shape, w.shape[1]
    y = torch.empty(rows, outer, dtype=x.dtype)
    grid = (triton.cdiv(rows, tile[0]), triton.cdiv(outer, tile[1]))
    product_kernel[grid](x, w, y, rows, inner, outer, *tile, PARTS=parts, num_stages=1)
    return y
