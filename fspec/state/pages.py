"""Paged K/V rows of full-attention layers."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fspec.errors import CapacityError, ShapeError
from fspec.state.protocol import copy_slot, fork, put, reset


class KVPages(NamedTuple):
    """Committed K/V rows of `layer` layers, in pages that requests own or share.

    k, v: `[layer, page, row, kv head, dim]`, the arena.
    table: int64 `[slot, n]`, the arena page of each run of rows; -1 where none is
        reserved.
    length: int64 `[slot]`, the number of rows that count. What lies behind it is
        garbage.
    """

    k: Tensor
    v: Tensor
    table: Tensor
    length: Tensor


def kv_pages(
    layers: int,
    pages: int,
    page_size: int,
    slots: int,
    pages_per_slot: int,
    heads: tuple[int, int],
    like: Tensor,
) -> KVPages:
    """Make empty pages, none reserved.

    Args:
        layers: attention layers, 0 or more.
        pages: arena pages, shared by all slots.
        page_size: rows in a page.
        slots: requests that fit.
        pages_per_slot: width of the page table.
        heads: key heads and their dim.
        like: a tensor of the dtype and device to use.

    Raises:
        ShapeError: a count is below 1.
    """
    if min(pages, page_size, slots, pages_per_slot) < 1:
        raise ShapeError(
            f"pages={pages}, page_size={page_size}, slots={slots} and pages_per_slot="
            f"{pages_per_slot} were given; each must be at least 1"
        )
    arena = like.new_zeros(layers, pages, page_size, *heads)
    table = torch.full((slots, pages_per_slot), -1, device=like.device)
    length = torch.zeros(slots, dtype=torch.int64, device=like.device)
    return KVPages(arena, arena.clone(), table, length)


def gather_rows(
    arena: Float[Tensor, "page row kv k"], table: Int[Tensor, " n"], length: int
) -> Float[Tensor, "kv length k"]:
    """Copy one request's committed rows of one layer out of its pages."""
    size = arena.shape[1]
    rows = arena[table[: -(-length // size)]].flatten(0, 1)[:length]
    return rows.transpose(0, 1)


def write_rows_(pages: KVPages, slot: int, start: int, k: Tensor, v: Tensor) -> None:
    """Write rows `[layer, rows, kv, k]` of one request at `start`, in place.

    The rows' pages must be reserved (`check_reserved`).
    """
    at = torch.arange(start, start + k.shape[1], device=k.device)
    size = pages.k.shape[2]
    page, row = pages.table[slot, at // size], at % size
    pages.k[:, page, row] = k
    pages.v[:, page, row] = v


def check_reserved(pages: KVPages, slot: int, start: int, end: int) -> None:
    """Check that rows `start`…`end − 1` of a slot have pages that it alone holds.

    Raises:
        CapacityError: a page is missing or shared; nothing has been written.
    """
    size = pages.k.shape[2]
    needed = -(-end // size)
    have = int((pages.table[slot] >= 0).sum())
    if needed > have:
        raise CapacityError(
            f"slot {slot} has {have} pages of {size} rows and needs {needed} for "
            f"{end} rows; reserve pages before the step"
        )
    mine = pages.table[slot, start // size : needed]
    if int((pages.table[..., None] == mine).sum()) > len(mine):
        raise CapacityError(
            f"slot {slot} shares a page of rows {start}…{end - 1} with another slot; "
            "reserve again, which copies it, before writing there"
        )


@fork.register
def _(pages: KVPages, source: int, target: int) -> KVPages:
    return pages._replace(
        table=copy_slot(pages.table, 0, source, target),
        length=copy_slot(pages.length, 0, source, target),
    )


@reset.register
def _(pages: KVPages, slot: int) -> KVPages:
    return pages._replace(
        table=put(pages.table, 0, slot, -1), length=put(pages.length, 0, slot, 0)
    )
