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


def key_tiles(
    committed: Float[Tensor, "kv n k"], block: Float[Tensor, "kv t k"]
) -> Float[Tensor, "kv m k"]:
    """Put committed rows and the block's rows at their positions, zeros behind them.

    Returns:
        fp32 rows at positions 0…m−1, `m` the next multiple of `TILE`.
    """
    rows = torch.cat([committed.float(), block.float()], 1)
    return F.pad(rows, (0, 0, 0, -rows.shape[1] % TILE))


def attend(
    q: Float[Tensor, "t h k"],
    positions: Int[Tensor, " t"],
    keys: Float[Tensor, "kv n k"],
    values: Float[Tensor, "kv n v"],
) -> Float[Tensor, "t h v"]:
    """Attend from each row of `q` to keys at positions up to its own, in fp32.

    Args:
        q: queries after norm and rotation; head `h` reads key head `h // (h / kv)`.
        positions: ascending absolute positions of the rows of `q`.
        keys: rows in order of position, padded to whole tiles (`key_tiles`).
        values: likewise.

    Returns:
        The weighted values, fp32.
    """
    rows, heads, dim = q.shape
    kv = keys.shape[0]
    q = F.pad(q.float(), (0, 0, 0, 0, 0, -rows % ROWS))
    positions = F.pad(positions, (0, -rows % ROWS))
    # [row group, kv head, query heads of it x rows, dim]: one product for the group
    grouped = q.view(-1, ROWS, kv, heads // kv, dim).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(-1, kv, heads // kv * ROWS, dim)
    out = [
        _attend_group(queries, group, keys, values)
        for queries, group in zip(grouped, positions.split(ROWS), strict=True)
    ]
    merged = torch.stack(out).view(-1, kv, heads // kv, ROWS, values.shape[2])
    merged = merged.permute(0, 3, 1, 2, 4).reshape(-1, heads, values.shape[2])
    return merged[:rows]


def _attend_group(
    q: Float[Tensor, "kv m k"],
    positions: Int[Tensor, " r"],
    keys: Float[Tensor, "kv n k"],
    values: Float[Tensor, "kv n v"],
) -> Float[Tensor, "kv m v"]:
    kv, m, dim = q.shape
    tiles = int(positions.max()) // TILE + 1
    k = keys[:, : tiles * TILE].reshape(kv * tiles, TILE, dim)
    v = values[:, : tiles * TILE].reshape(kv * tiles, TILE, -1)
    queries = q[:, None].expand(kv, tiles, m, dim).reshape(kv * tiles, m, dim)
    scores = torch.bmm(queries, k.transpose(1, 2)).view(kv, tiles, m, TILE)
    at = torch.arange(tiles * TILE, device=q.device).view(tiles, 1, TILE)
    hidden = at > positions.repeat(m // positions.shape[0])[:, None]
    scores = (scores * dim**-0.5).masked_fill(hidden, -torch.inf)
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
