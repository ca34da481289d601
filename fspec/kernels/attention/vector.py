"""Attention on a CPU: all tiles of a row group at once, summed in order of position.

A row's result must not depend on which rows share its call, on the length of the
longest of them, or on where pages end. So keys are cut into tiles at absolute
positions, a block's rows stand in the tile of their position beside the rows from
the pages, every product has one fixed shape, and partial sums are added in order of
position. Tiles that a row cannot see add exact zeros at the end.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

TILE = 64
ROWS = 8


def key_tiles(
    committed: Float[Tensor, "kv n k"], block: Float[Tensor, "kv t k"]
) -> Float[Tensor, "kv m k"]:
    """Put committed rows and the block's rows at their positions, zeros behind them.

    Returns:
        fp32 rows at positions 0…m−1, `m` the next multiple of `TILE`.
    """
    kv, dim = block.shape[0], block.shape[2]
    behind = -(committed.shape[1] + block.shape[1]) % TILE
    zeros = block.new_zeros(kv, behind, dim, dtype=torch.float32)
    return torch.cat([committed.float(), block.float(), zeros], 1)


def attend(
    q: Float[Tensor, "t h k"],
    start: int,
    keys: Float[Tensor, "kv n k"],
    values: Float[Tensor, "kv n v"],
) -> Float[Tensor, "t h v"]:
    """Attend from each row of `q` to keys at positions up to its own, in fp32.

    Args:
        q: queries of the rows at positions `start`, `start + 1`, …, after norm and
            rotation; head `h` reads key head `h // (h / kv)`.
        start: position of the first row.
        keys: rows in order of position, padded to whole tiles (`key_tiles`).
        values: likewise.

    Returns:
        The weighted values, fp32.
    """
    rows, heads, dim = q.shape
    kv = keys.shape[0]
    if rows % ROWS:
        q = F.pad(q, (0, 0, 0, 0, 0, -rows % ROWS))
    # [row group, kv head, rows x query heads of it, dim]: one product for the group
    groups = q.float().view(-1, ROWS, kv, heads // kv, dim).transpose(1, 2)
    groups = groups.reshape(-1, kv, ROWS * heads // kv, dim)
    out = [
        _attend_group(group, start + i * ROWS, heads // kv, keys, values)
        for i, group in enumerate(groups)
    ]
    merged = torch.stack(out).view(-1, kv, ROWS, heads // kv, values.shape[2])
    return merged.transpose(1, 2).reshape(-1, heads, values.shape[2])[:rows]


def _attend_group(
    q: Float[Tensor, "kv m k"],
    start: int,
    repeats: int,
    keys: Float[Tensor, "kv n k"],
    values: Float[Tensor, "kv n v"],
) -> Float[Tensor, "kv m v"]:
    kv, m, dim = q.shape
    # the last group's padding rows may point past the keys; they see what is there
    tiles = min((start + ROWS - 1) // TILE + 1, keys.shape[1] // TILE)
    k = keys[:, : tiles * TILE].reshape(kv * tiles, TILE, dim)
    v = values[:, : tiles * TILE].reshape(kv * tiles, TILE, -1)
    queries = (q * dim**-0.5).repeat_interleave(tiles, 0)
    scores = torch.bmm(queries, k.transpose(1, 2)).view(kv, tiles, m, TILE)
    at = torch.arange(tiles * TILE, device=q.device).view(tiles, 1, TILE)
    row = torch.arange(start * repeats, start * repeats + m, device=q.device)
    scores = scores.masked_fill(at * repeats > row[:, None], -torch.inf)
    weight = torch.exp(scores - scores.amax((1, 3), keepdim=True))
    parts = torch.bmm(weight.view(kv * tiles, m, TILE), v).view(kv, tiles, m, -1)
    total = _sum_in_order(weight.sum(-1, keepdim=True))
    return _sum_in_order(parts) / total


def _sum_in_order(parts: Float[Tensor, "kv tiles m x"]) -> Float[Tensor, "kv m x"]:
    # a library sum may regroup by the number of tiles; this one never does
    first, *rest = parts.unbind(1)
    for part in rest:
        first = first + part
    return first
