"""States to start from, with pages reserved."""

from typing import Any

import torch

from fspec.algorithms.accept import greedy
from fspec.algorithms.step import DecodeState
from fspec.layers.decoder import TargetParams
from fspec.state.pool import page_pool, reserve
from fspec.state.target import TargetState, target_state
from fspec.types import Drafter, Room

PAGE_SIZE = 64


def init_target(
    params: TargetParams,
    *,
    batch: int = 1,
    capacity: int,
    width: int = 15,
    page_size: int = PAGE_SIZE,
) -> TargetState:
    """Make the state of `batch` empty sequences with all their pages reserved.

    Args:
        params: the target.
        batch: sequences.
        capacity: tokens that fit into each.
        width: most drafts a block will carry.
        page_size: rows in a page; any size on a CPU.

    Raises:
        ShapeError: a size is out of range.
    """
    room = _room(batch, capacity, page_size)
    return _reserve_all(_target(params, room, width), batch, room)


def init_decode(
    params: TargetParams,
    drafter: Drafter,
    *,
    batch: int = 1,
    capacity: int,
    max_tokens: int,
    stop_ids: tuple[int, ...] = (),
    page_size: int = PAGE_SIZE,
) -> DecodeState:
    """Make what a step of `drafter` starts from: empty sequences, greedy requests.

    Prefill it, set `boundary` to the first token, then step.

    Args:
        params: the target, with the head that the drafter needs.
        drafter: decides the drafter state and the width of blocks.
        batch: requests.
        capacity: tokens that fit into each, its last block included.
        max_tokens: tokens that each may emit.
        stop_ids: ids that end a request.
        page_size: as in `init_target`.

    Raises:
        ShapeError: a size is out of range.
        UnsupportedError: the checkpoint lacks the drafter's weights.
    """
    room = _room(batch, capacity, page_size)
    states = _target(params, room, drafter.width), drafter.init(params, room)
    target, draft = _reserve_all(states, batch, room)
    sampling = greedy(
        batch,
        width=drafter.width,
        max_tokens=max_tokens,
        room=min(capacity, params.config.max_positions),
        stop_ids=stop_ids,
        like=params.embed,
    )
    boundary = torch.zeros(batch, dtype=torch.int64, device=params.embed.device)
    return DecodeState(target, draft, boundary, sampling)


def _room(batch: int, capacity: int, page_size: int) -> Room:
    each = -(-capacity // max(page_size, 1))
    return Room(batch, batch * each, page_size, each)


def _target(params: TargetParams, room: Room, width: int) -> TargetState:
    return target_state(
        params.config,
        params.embed,
        slots=room.slots,
        pages=room.pages,
        page_size=room.page_size,
        pages_per_slot=room.pages_per_slot,
        width=width,
    )


def _reserve_all(states: Any, batch: int, room: Room) -> Any:
    pool = page_pool(room.pages)
    for slot in range(batch):
        pool, states = reserve(pool, states, slot, room.pages_per_slot * room.page_size)
    return states
