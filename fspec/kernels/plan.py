"""What a call on a GPU needs whatever the layer: facts and row tiles, uploaded once."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fspec.errors import ShapeError, UnsupportedError
from fspec.kernels.backend import Launch
from fspec.kernels.delta.triton import CHUNK
from fspec.types import Batch

# a row's own position decides the length of its splits, so that its sum is cut the
# same way in every call: up to this position, splits of so many rows
RANGES = ((16_384, 512), (65_536, 1_024), (204_800, 4_096), (1 << 62, 8_192))
LEAST_PAGE = 16


class Shape(NamedTuple):
    """Sides of an attention tile: query rows times heads, keys; and its launch.

    One shape for a device and bytes of an element, whatever the call: the bits of a
    row's sums depend on it.
    """

    side: int
    tile: int
    launch: Launch


SHAPES = {
    ("cuda", 2): Shape(64, 64, Launch(4, 3)),
    ("cuda", 4): Shape(64, 32, Launch(4, 1)),
    # that spill no register (`make xpu-check`); none has met an XPU yet
    ("xpu", 2): Shape(64, 16, Launch(8, 1)),
    ("xpu", 4): Shape(16, 16, Launch(8, 1)),
}


class Plan(NamedTuple):
    """A call's layout on the device.

    batch: the call.
    full: whether every row is real.
    chunks: most chunks of the delta rule from a request's start to its last row.
    facts: int32 `[b, 5]`, slot, start, length, count and edge of each request.
    tiles: int32 `[n, 5]`, row tiles of attention: request, position of the first row,
        its place among the call's rows, rows, length of a split.
    splits: of each tile.
    edge_rows: rows from the key tile of a request's first new row to its last tile's
        end, the most of all requests.
    side, tile, launch: `Shape`.
    """

    batch: Batch
    full: bool
    chunks: int
    facts: Tensor
    tiles: Tensor
    splits: list[int]
    edge_rows: int
    side: int
    tile: int
    launch: Launch

    def groups(self, most: int) -> list[tuple[Tensor, int]]:
        """Cut the tiles to groups of at most `most` tiles times splits each."""
        out, first = [], 0
        while first < len(self.splits):
            last, widest = first, 0
            while last < len(self.splits):
                wider = max(widest, self.splits[last])
                if last > first and wider * (last + 1 - first) > most:
                    break
                last, widest = last + 1, wider
            out.append((self.tiles[first:last], widest))
            first = last
        return out


def row_tiles(batch: Batch, t: int, rows: int) -> list[tuple[int, int, int, int, int]]:
    """Cut each request's rows to tiles of up to `rows`, none across a range's edge."""
    out = []
    for i, (length, count) in enumerate(zip(*batch[1:3], strict=True)):
        position = length
        while position < length + count:
            edge, split = next(known for known in RANGES if position < known[0])
            end = min(position + rows, length + count, edge)
            place = i * t + position - length
            out.append((i, position, place, end - position, split))
            position = end
    return out


def plan(
    batch: Batch,
    t: int,
    heads: int,
    arena: Float[Tensor, "layer page row kv k"],
    table: Int[Tensor, "slot n"],
    single: bool = False,
) -> Plan:
    """Plan a call.

    Args:
        batch: the call.
        t: rows of a request.
        heads: query heads.
        arena: its sizes and device are read.
        table: page table; not read here.
        single: a tile for each row, where requests would share one: more reading, the
            same bits.

    Raises:
        ShapeError: pages below 16 rows.
        UnsupportedError: more query heads a key head than a tile has rows.
    """
    size, kv = arena.shape[2:4]
    if size < LEAST_PAGE:
        raise ShapeError(
            f"pages of {size} rows were given; GPU kernels read pages of "
            f"{LEAST_PAGE} rows or more. Make the state with page_size=64"
        )
    shape = SHAPES["cuda" if arena.is_cuda else "xpu", arena.element_size()]
    if heads // kv > shape.side:
        raise UnsupportedError(
            f"{heads // kv} query heads for a key head were given; GPU attention takes "
            f"up to {shape.side}"
        )
    tiles = row_tiles(batch, t, 1 if single else shape.side // (heads // kv))
    # a request without rows does nothing: it folds nothing either
    known = [
        (slot, start, length, count, edge if count else start)
        for slot, length, count, edge, start in zip(*batch, strict=True)
    ]
    work = (
        -(-(length + count - start) // CHUNK) if count else 0
        for _, start, length, count, _ in known
    )
    # one small copy a call; int32, for positions end at 2 ** 20
    flat = torch.tensor(
        [x for row in (*known, *tiles) for x in row], dtype=torch.int32
    ).to(arena.device, non_blocking=True)
    facts_end = 5 * len(known)
    return Plan(
        batch,
        min(batch.counts) == t,
        max(work),
        flat[:facts_end].view(-1, 5),
        flat[facts_end:].view(-1, 5),
        [(p + r - 1) // length + 1 for _, p, _, r, length in tiles],
        _edge_rows(batch, shape.tile),
        *shape,
    )


def _edge_rows(batch: Batch, tile: int) -> int:
    rows = (
        length % tile + count
        for length, count in zip(batch.lengths, batch.counts, strict=True)
        if count
    )
    return -(-max(rows, default=0) // tile) * tile
