"""Attention on a CPU: all tiles of a row group at once, summed in order of position.

A row's result must not depend on which rows share its call, on the length of the
longest of them, or on where pages end. So keys are cut into tiles at absolute
positions, a block's rows stand in the tile of their position beside the rows from
the pages, every product has one fixed shape, and partial sums are added in order of
position. Tiles that a row cannot see add exact zeros at the end.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

TILE = 64
ROWS = 8


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
    rows = arena[pages].flatten(0, 1).float()
    if rows.shape[0] < needed:
        rows = F.pad(rows, (0, 0, 0, 0, 0, needed - rows.shape[0]))
    rows[length:end] = block
    rows[end:] = 0  # also what is NaN: zero weight times NaN would be NaN
    return rows[:needed].unflatten(0, (-1, TILE))


def attend(
    q: Float[Tensor, "t h k"],
    start: int,
    keys: Float[Tensor, "n 64 kv k"],
    values: Float[Tensor, "n 64 kv v"],
) -> Float[Tensor, "t h v"]:
    """Attend from each row of `q` to keys at positions up to its own, in fp32.

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
    if rows % ROWS:
        q = F.pad(q, (0, 0, 0, 0, 0, -rows % ROWS))
    # [row group, kv head, rows x query heads of it, dim]: one product for the group
    groups = (q.float() * dim**-0.5).view(-1, ROWS, kv, heads // kv, dim)
    groups = groups.transpose(1, 2).reshape(-1, kv, ROWS * heads // kv, dim)
    out = [
        _attend_group(group, start + i * ROWS, heads // kv, keys, values)
        for i, group in enumerate(groups)
    ]
    merged = torch.stack(out).view(-1, kv, ROWS, heads // kv, values.shape[3])
    return merged.transpose(1, 2).reshape(-1, heads, values.shape[3])[:rows]


def _attend_group(
    q: Float[Tensor, "kv m k"],
    start: int,
    repeats: int,
    keys: Float[Tensor, "n 64 kv k"],
    values: Float[Tensor, "n 64 kv v"],
) -> Float[Tensor, "kv m v"]:
    # padding rows of a last group may point past the keys; they see what is there
    tiles = min((start + ROWS - 1) // TILE + 1, keys.shape[0])
    m = q.shape[1]
    scores = [
        torch.bmm(head.expand(tiles, -1, -1), k.transpose(1, 2))
        for head, k in zip(q, keys[:tiles].unbind(2), strict=True)
    ]
    at = torch.arange(tiles * TILE, device=q.device).view(tiles, 1, TILE)
    row = torch.arange(start * repeats, start * repeats + m, device=q.device)
    hidden = at * repeats > row[:, None]
    scores = torch.stack(scores).masked_fill(hidden, -torch.inf)
    weight = torch.exp(scores - scores.amax((1, 3), keepdim=True))
    total = _sum_in_order(weight.sum(-1, keepdim=True))
    parts = map(torch.bmm, weight, values[:tiles].unbind(2))
    return _sum_in_order(torch.stack(list(parts))) / total


def _sum_in_order(parts: Float[Tensor, "kv n m x"]) -> Float[Tensor, "kv m x"]:
    # a library sum may regroup by the number of tiles; this one never does
    first, *rest = parts.unbind(1)
    for part in rest:
        first = first + part
    return first
