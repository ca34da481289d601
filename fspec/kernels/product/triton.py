"""The GPU product: every output is one sum over `in`, unsplit, in ascending order.

Then tile, warps, loader and number of rows change no bit (measured: LOG.md), so each
number of rows takes the tile that is fastest for it, and long prompts the library's
own product where that is proven to give the same bytes.
"""

from typing import NamedTuple

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, descriptor, has_descriptors, precision
from fspec.kernels.product.jit import product_kernel

LIBRARY_ROWS = (4096, 2048, 1024, 512)  # as many rows as the library is asked for


class Tile(NamedTuple):
    """One program's work: rows, outputs, terms a turn; and how it is launched.

    swap: the weight is the left operand, whose side is long where rows are few.
    """

    rows: int
    outer: int
    inner: int
    launch: Launch
    swap: bool = True


# the fastest tile on an H200, by most rows and most outputs (LOG.md)
ANY = 1 << 62
CUDA_TILES = (
    (16, 8_191, Tile(16, 32, 256, Launch(4, 4))),
    (16, 24_575, Tile(16, 64, 128, Launch(4, 4))),
    (16, 65_536, Tile(16, 32, 256, Launch(4, 4))),
    (16, ANY, Tile(16, 128, 128, Launch(4, 3))),
    (32, ANY, Tile(32, 64, 128, Launch(4, 4))),
    (64, 8_191, Tile(64, 64, 128, Launch(4, 4))),
    (64, 24_575, Tile(64, 64, 64, Launch(4, 6), swap=False)),
    (64, ANY, Tile(64, 128, 64, Launch(4, 3), swap=False)),
    (128, 8_191, Tile(64, 64, 64, Launch(4, 6))),
    (128, 24_575, Tile(64, 128, 64, Launch(4, 4), swap=False)),
    (128, ANY, Tile(128, 64, 64, Launch(8, 4))),
    (ANY, ANY, Tile(128, 128, 64, Launch(8, 3), swap=False)),
)
# that spill no register, in parts or whole (`make xpu-check`)
XPU_TILES = (
    (8, ANY, Tile(8, 64, 64, Launch(4, 1), swap=False)),
    (32, ANY, Tile(32, 64, 64, Launch(8, 1), swap=False)),
    (ANY, ANY, Tile(64, 64, 32, Launch(8, 1), swap=False)),
)
# fp32 products are for checking: one tile
CUDA_FP32 = ((ANY, ANY, Tile(16, 64, 32, Launch(4, 2))),)
XPU_FP32 = ((ANY, ANY, Tile(16, 32, 32, Launch(4, 1), swap=False)),)


def choose_tile(rows: int, outer: int, like: Tensor) -> Tile:
    """Choose the fastest tile for a number of rows; all give the same bits."""
    if like.dtype == torch.float32:
        tiles = CUDA_FP32 if like.is_cuda else XPU_FP32
    else:
        tiles = CUDA_TILES if like.is_cuda else XPU_TILES
    return next(tile for most, width, tile in tiles if rows <= most and outer <= width)


def tile_arguments(
    x: Tensor, w: Tensor, tile: Tile, part: int | None
) -> tuple[tuple, dict]:
    """Arguments of `tile_sum` behind the output, and its constants and launch."""
    inner, outer = w.shape
    tma = has_descriptors(w.t())
    even = inner % tile.inner == 0
    numbers = (x.shape[0], inner, outer, x.stride(0), *w.stride(), part or inner)
    constants = {
        "ROWS": tile.rows,
        "OUTER": tile.outer,
        "INNER": tile.inner,
        "EVEN": even,
        "SWAP": tile.swap,
        "TMA": tma,
        "PARTS": part is not None and part < inner,
        "PRECISION": precision(x.dtype),
    }
    return numbers, constants | tile.launch._asdict()


def loader(w: Tensor, tile: Tile) -> object:
    """What the kernel reads a weight through."""
    if has_descriptors(w.t()):
        return descriptor(w.t(), [tile.outer, tile.inner])
    return w


def run_tile(
    x: Float[Tensor, "r i"],
    w: Float[Tensor, "i o"],
    tile: Tile,
    out: Float[Tensor, "r o"],
    part: int | None = None,
) -> None:
    """Write x w to `out` with a given tile, in sums of `part` terms."""
    numbers, options = tile_arguments(x, w, tile, part)
    grid = (triton.cdiv(x.shape[0], tile.rows), triton.cdiv(w.shape[1], tile.outer))
    product_kernel[grid](x, loader(w, tile), out, *numbers, **options)


def product(
    x: Float[Tensor, "r i"],
    w: Float[Tensor, "i o"],
    library: frozenset[tuple[int, int, int]] = frozenset(),
) -> Float[Tensor, "r o"]:
    """Multiply rows by a dense weight. Bytes: the weight once, x and y.

    Args:
        x: rows of any number.
        w: `[in, out]`; in memory best `[out, in]`.
        library: `(in, out, rows)` at which the library's product is proven to give
            the same bits.
    """
    if x.stride(-1) != 1:
        x = x.contiguous()
    rows, (inner, outer) = x.shape[0], w.shape
    out = x.new_empty(rows, outer)
    first = 0
    for count in LIBRARY_ROWS if library and x.is_contiguous() else ():
        while rows - first >= count and (inner, outer, count) in library:
            torch.mm(x[first : first + count], w, out=out[first : first + count])
            first += count
    if first < rows:
        rest = x[first:]
        run_tile(rest, w, choose_tile(len(rest), outer, x), out[first:])
    return out


def prove(w: Float[Tensor, "i o"]) -> frozenset[tuple[int, int, int]]:
    """Find numbers of rows at which the library gives the bits of the tiles.

    It computes one product of random rows both ways; that the library chooses its
    kernel by shape alone is an assumption.
    """
    if w.dtype == torch.float32 or not w.is_cuda:
        return frozenset()
    inner, outer = w.shape
    random = torch.Generator(w.device).manual_seed(inner * outer)
    most = max(LIBRARY_ROWS)
    x = torch.randn(most, inner, device=w.device, generator=random).to(w.dtype)
    ours = product(x, w)
    return frozenset(
        (inner, outer, rows)
        for rows in LIBRARY_ROWS
        if torch.equal(torch.mm(x[:rows], w), ours[:rows])
    )
