"""Paged attention on a GPU: absolute tiles, absolute splits, one pass for a block.

A tile holds every query head of a key head for as many rows as fit, so that a block
reads its keys once. Keys are reduced in tiles at absolute positions. Those below the
tile of the first new row come from their pages; from there on, pages and new rows are
first copied side by side (`edge_kernel`), so that a key stands in the same place of
its tile whether it was committed or is new.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fspec.kernels.attention.jit import attend_kernel, edge_kernel, merge_kernel
from fspec.kernels.backend import (
    Launch,
    descriptor,
    has_descriptors,
    overlap,
    power,
    precision,
)

PARTIAL_BYTES = 256 << 20  # of partial results at a time
MERGED = 16  # splits joined at a time


def xpu_columns(wide: int) -> int:
    """Value columns of a program on an XPU, whose registers hold no more."""
    return 64 if wide > 128 else min(wide, 32)


def attend(
    plan: Any,
    layer: int,
    q: Float[Tensor, "r h k"],
    k: Float[Tensor, "r kv k"],
    v: Float[Tensor, "r kv k"],
    keys: Float[Tensor, "layer page row kv k"],
    values: Float[Tensor, "layer page row kv k"],
    table: Int[Tensor, "slot n"],
) -> Float[Tensor, "r h k"]:
    """Attend from each row to its request's rows up to its own, as the vector form.

    Bytes: the keys and values of a request once for each tile of its rows, which holds
    `64 / (query heads of a key head)` of them.
    """
    heads, dim = q.shape[1:]
    _, pages, size, kv, _ = keys.shape
    wide, first = power(dim), layer * pages * size
    out = (q.new_empty if plan.full else q.new_zeros)(*q.shape)
    if not plan.splits:
        return out
    early = overlap(q)
    requests = len(plan.batch.slots)
    edges = [q.new_empty(requests * plan.edge_rows, kv * dim) for _ in "kv"]
    edge_kernel[(plan.edge_rows // plan.tile, kv, requests)](
        k,
        v,
        keys,
        values,
        table,
        plan.facts,
        *edges,
        first,
        k.stride(0),
        v.stride(0),
        table.stride(0),
        len(q) // requests,
        SIZE=size,
        KV=kv,
        D=dim,
        PD=wide,
        KT=plan.tile,
        **early,
        **Launch()._asdict(),
    )
    arenas = [x.view(-1, kv * dim) for x in (keys, values)]
    tma = has_descriptors(arenas[0]) and dim == wide and size % plan.tile == 0
    sources = [descriptor(x, [plan.tile, dim]) if tma else x for x in edges + arenas]
    scale = dim**-0.5 * math.log2(math.e)
    sizes = {"G": heads // kv, "KV": kv, "D": dim, "PD": wide, "QT": plan.side}
    each = kv * plan.side * wide * 4
    columns = wide if q.is_cuda else xpu_columns(wide)
    joined = min(wide, 128)
    for tiles, splits in plan.groups(max(PARTIAL_BYTES // each, 1)):
        shape = splits, len(tiles), kv, plan.side
        part = q.new_empty(*shape, wide, dtype=torch.float32)
        top, total = (q.new_empty(*shape, dtype=torch.float32) for _ in "ml")
        attend_kernel[(len(tiles) * (wide // columns), splits, kv)](
            q,
            *sources,
            table,
            plan.facts,
            tiles,
            part,
            top,
            total,
            first,
            plan.edge_rows,
            q.stride(0),
            table.stride(0),
            scale,
            SIZE=size,
            KT=plan.tile,
            BD=columns,
            TMA=tma,
            PRECISION=precision(q.dtype),
            **sizes,
            **early,
            **plan.launch._asdict(),
        )
        merge_kernel[(len(tiles), plan.side, kv * (wide // joined))](
            part,
            top,
            total,
            tiles,
            out,
            scale,
            len(tiles),
            BD=joined,
            BS=MERGED,
            **sizes,
            **early,
            **Launch(4, 1)._asdict(),
        )
    return out
