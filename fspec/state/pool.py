"""The host's pool of pages: who holds which, and copy on write.

The pool stays on the host, whatever device holds the arenas. Pages are reserved before
a step, so a commit never allocates. A page that several sequences share is copied
before one of them may write into it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils import _pytree as pytree

from fspec.errors import CapacityError
from fspec.state.pages import KVPages
from fspec.state.protocol import fork, reset
from fspec.state.tree import host

T = TypeVar("T")


class PagePool(NamedTuple):
    """References to every arena page, int64 `[page]`; 0 is free."""

    references: Tensor


def page_pool(pages: int) -> PagePool:
    """Make a pool of `pages` free pages."""
    return PagePool(torch.zeros(pages, dtype=torch.int64, device="cpu"))


def take_pages(pool: PagePool, count: int) -> tuple[PagePool, Int[Tensor, " count"]]:
    """Take `count` free pages, lowest numbers first.

    Raises:
        CapacityError: fewer are free; the pool is as it was.
    """
    free = (pool.references == 0).nonzero()[:, 0]
    if len(free) < count:
        raise CapacityError(
            f"{count} pages were asked for and {len(free)} of "
            f"{len(pool.references)} are free; release requests or make a larger pool"
        )
    return share_pages(pool, free[:count]), free[:count]


def share_pages(pool: PagePool, pages: Int[Tensor, " n"]) -> PagePool:
    """Count one more reference to each of `pages`."""
    references = pool.references.clone()
    references[pages] += 1
    return PagePool(references)


def release_pages(pool: PagePool, pages: Int[Tensor, " n"]) -> PagePool:
    """Count one reference less to each of `pages`.

    Raises:
        CapacityError: a page is already free.
    """
    if bool((pool.references[pages] < 1).any()):
        raise CapacityError(f"pages {host(pages)} were released; some are free")
    references = pool.references.clone()
    references[pages] -= 1
    return PagePool(references)


def reserve(pool: PagePool, states: T, slot: int, end: int) -> tuple[PagePool, T]:
    """Give a slot pages of its own for the rows from its length up to `end`.

    Args:
        pool: the pool of the arenas' pages; not written.
        states: a pytree whose `KVPages` share page numbers, such as
            `(target, drafter)`; not written.
        slot: whose pages.
        end: rows that must fit.

    Returns:
        The pool and the states with it done. Pages that were shared with another
        slot are copied in every arena.

    Raises:
        CapacityError: the pool or the page table is too small; nothing has changed.
    """
    plan = _plan(pool, states, slot, end)
    if plan.old.numel():
        states = _map_pages(_fresh_arenas, states)
    return plan.pool, _apply_(plan, states, slot)


def reserve_(pool: PagePool, states: T, slot: int, end: int) -> tuple[PagePool, T]:
    """Do as `reserve`, copying shared pages inside the arenas it is given."""
    plan = _plan(pool, states, slot, end)
    return plan.pool, _apply_(plan, states, slot)


def branch(pool: PagePool, states: T, source: int, target: int) -> tuple[PagePool, T]:
    """Make slot `target` a branch of slot `source` that shares all its pages.

    Raises:
        CapacityError: `target` holds pages, which would be lost; release it first.
    """
    tables = _first(states).table
    if source == target or bool((tables[target] >= 0).any()):
        raise CapacityError(
            f"slot {source} was to be branched to slot {target}, which holds pages; "
            "release it first or take another"
        )
    table = tables[source].cpu()
    return share_pages(pool, table[table >= 0]), fork(states, source, target)


def release(pool: PagePool, states: T, slot: int) -> tuple[PagePool, T]:
    """Give a slot's pages back and make it an empty sequence."""
    table = _first(states).table[slot].cpu()
    return release_pages(pool, table[table >= 0]), reset(states, slot)


class _Plan(NamedTuple):
    pool: PagePool
    row: Tensor
    old: Tensor
    new: Tensor


def _plan(pool: PagePool, states: Any, slot: int, end: int) -> _Plan:
    nodes = _nodes(states)
    size = nodes[0].k.shape[2]
    row = nodes[0].table[slot].to("cpu", copy=True)
    start = min(int(node.length[slot]) for node in nodes)
    if end > len(row) * size:
        raise CapacityError(
            f"{end} rows were asked for slot {slot}; its page table holds {len(row)} "
            f"pages of {size} rows. Make the state with more pages per slot"
        )
    wanted = torch.arange(start // size, -(-end // size), device="cpu")
    held = row[wanted]
    missing = wanted[held < 0]
    shared = wanted[(held >= 0) & (pool.references[held.clamp(min=0)] > 1)]
    taken_pool, taken = take_pages(pool, len(missing) + len(shared))
    old = row[shared]
    row[torch.cat([missing, shared])] = taken
    return _Plan(release_pages(taken_pool, old), row, old, taken[len(missing) :])


def _apply_(plan: _Plan, states: T, slot: int) -> T:
    def apply(pages: KVPages) -> KVPages:
        for arena in (pages.k, pages.v):
            if plan.old.numel():
                arena[:, plan.new] = arena[:, plan.old]
        table = pages.table.clone()
        table[slot] = plan.row.to(table.device)
        return pages._replace(table=table)

    return _map_pages(apply, states)


def _fresh_arenas(pages: KVPages) -> KVPages:
    return pages._replace(k=pages.k.clone(), v=pages.v.clone())


def _nodes(states: Any) -> list[KVPages]:
    found = pytree.tree_leaves(states, is_leaf=_is_pages)
    return [node for node in found if isinstance(node, KVPages)]


def _first(states: Any) -> KVPages:
    return _nodes(states)[0]


def _is_pages(node: Any) -> bool:
    return isinstance(node, KVPages)


def _map_pages(f: Callable[[KVPages], KVPages], states: T) -> T:
    def apply(node: Any) -> Any:
        return f(node) if isinstance(node, KVPages) else node

    return cast(T, pytree.tree_map(apply, states, is_leaf=_is_pages))
