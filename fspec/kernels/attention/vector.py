"""Attention on a CPU: all tiles of a row group at once, summed in order of position.

A row's result must not depend on which rows share its call, on the length of the
longest of them, or on where pages end. So keys are cut into tiles at absolute
positions, a block's rows stand in the tile of their position beside the rows from
the pages, every product has one fixed shape, and partial sums are added in an order
fixed by position: each run of eight tiles, then the runs. Tiles that a row cannot see
add exact zeros at the end.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from fspec.kernels.rows import to_rows
from fspec.types import Batch

TILE = 64
ROWS = 8
RUN = 8


def attend(
    plan: Batch,
    layer: int,
    q: Float[Tensor, "r h k"],
    k: Float[Tensor, "r kv k"],
    v: Float[Tensor, "r kv k"],
    keys: Float[Tensor, "layer page row kv k"],
    values: Float[Tensor, "layer page row kv k"],
    table: Int[Tensor, "slot n"],
) -> Float[Tensor, "r h k"]:
    """Attend from the rows of a call, request by request, since lengths differ.

    Args:
        plan: the call.
        layer: which of the arenas' layers.
        q: queries after norm and rotation, as many rows for each request.
        k: the rows' own keys, likewise normed and rotated.
        v: the rows' own values.
        keys: the arena of committed keys.
        values: the arena of committed values.
        table: every slot's pages in order; -1 where it has none.

    Returns:
        The weighted values, fp32; zeros past a request's count.
    """
    t = q.shape[0] // len(plan.slots)
    out = []
    for i, (slot, length, count, *_) in enumerate(zip(*plan, strict=True)):
        rows, *fresh = (y[i * t : i * t + count] for y in (q, k, v))
        if count == 0:
            out.append(rows.new_zeros(t, *rows.shape[1:]))
            continue
        tiles = (
            gather_tiles(arena[layer], table[slot], length, new)
            for arena, new in zip((keys, values), fresh, strict=True)
        )
        out.append(to_rows(attend_rows(rows, length, *tiles), t))
    return torch.cat(out)


def gather_tiles(
    arena: Float[Tensor, "page row kv k"],
    table: Int[Tensor, " p"],
    length: int,
    block: Float[Tensor, "t kv k"],
) -> Float[Tensor, "n 64 kv k"]:
    """Copy committed rows from their pages, and the block's rows behind them.

    Args:
        arena: one layer's pages.
        table: the request's pages in order; -1 where it has none.
        length: committed rows.
        block: rows at positions `length`, `length + 1`, …

    Returns:
        fp32 rows by position in tiles; zeros behind the block, whatever was there.
    """
    size, end = arena.shape[1], length + block.shape[0]
    needed = -(-end // TILE) * TILE
    pages = table[: -(-needed // size)].clamp(min=0)
    rows = arena.index_select(0, pages).flatten(0, 1).float()
    if rows.shape[0] < needed:
        rows = F.pad(rows, (0, 0, 0, 0, 0, needed - rows.shape[0]))
    rows[length:end] = block
    rows[end:] = 0  # also what is NaN: zero weight times NaN would be NaN
    return rows[:needed].unflatten(0, (-1, TILE))


def attend_rows(
    q: Float[Tensor, "t h k"],
    start: int,
    keys: Float[Tensor, "n 64 kv k"],
    values: Float[Tensor, "n 64 kv v"],
) -> Float[Tensor, "t h v"]:
    """Attend from each row of one request to keys up to its position, in fp32.

    Args:
        q: queries of the rows at positions `start`, `start + 1`, …, after norm and
            rotation; head `h` reads key head `h // (h / kv)`.
        start: position of the first row.
        keys: rows by position in tiles (`gather_tiles`), at least up to the last row.
        values: likewise.

    Returns:
        The weighted values, fp32.
    """
    rows, heads, dim = q.shape
    kv = keys.shape[2]
    split = (q.float() * dim**-0.5).view(rows, kv, heads // kv, dim).transpose(0, 1)
    out = [
        _attend_group(group, start + i * ROWS, keys, values)
        for i, group in enumerate(split.split(ROWS, 1))
    ]
    return torch.cat(out, 1).transpose(0, 1).flatten(1, 2)


def _attend_group(
    q: Float[Tensor, "kv r h k"],
    start: int,
    keys: Float[Tensor, "n 64 kv k"],
    values: Float[Tensor, "n 64 kv v"],
) -> Float[Tensor, "kv r h v"]:
    kv, rows, heads, dim = q.shape
    real, m = rows * heads, ROWS * heads
    tiles = (start + rows - 1) // TILE + 1
    queries = F.pad(q.reshape(kv, real, dim), (0, 0, 0, m - real))
    scores = torch.stack(
        [
            torch.bmm(head.expand(tiles, -1, -1), k.transpose(1, 2))
            for head, k in zip(queries, keys[:tiles].unbind(2), strict=True)
        ]
    )[:, :, :real]
    # only the tiles that rows of this group end in hold keys behind a row
    first = start // TILE
    at = torch.arange(first * TILE, tiles * TILE, device=q.device).view(-1, 1, TILE)
    row = torch.arange(start * heads, start * heads + real, device=q.device)
    scores[:, first:].masked_fill_(at * heads > row[:, None], -torch.inf)
    weight = torch.exp(scores - scores.amax((1, 3), keepdim=True))
    total = _sum_in_order(weight.sum(-1, keepdim=True))
    padded = F.pad(weight, (0, 0, 0, m - real))
    parts = torch.stack(list(map(torch.bmm, padded, values[:tiles].unbind(2))))
    mixed = _sum_in_order(parts[:, :, :real]) / total
    return mixed.view(kv, rows, heads, -1)


def _sum_in_order(parts: Float[Tensor, "kv n m x"]) -> Float[Tensor, "kv m x"]:
    # a library sum may regroup by the number of tiles; here a tile's place decides:
    # each run of eight in order, then the runs in order. Tiles that fail are zeros
    parts = F.pad(parts, (0, 0, 0, 0, 0, -parts.shape[1] % RUN))
    runs = _add(parts.unflatten(1, (-1, RUN)).unbind(2))
    return _add(runs.unbind(1))


def _add(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
