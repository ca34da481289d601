"""Random small targets, token streams, and poisoned states to run laws on."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fspec
from fspec.config import TargetConfig
from fspec.state.mtp import MTPState
from fspec.state.pages import KVPages
from fspec.state.pool import PagePool
from fspec.state.target import target_state
from fspec.types import Room
from tests.toy import toy_config_dict, toy_state_dict
from tests.toy_config import parse

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR, FULL = "linear_attention", "full_attention"
VARIANTS: tuple[dict, ...] = (
    {},
    {"num_attention_heads": 6, "head_dim": 24, "tie_word_embeddings": True},
    {"layer_types": [FULL, LINEAR, LINEAR, FULL], "num_key_value_heads": 1},
    {"hidden_size": 40, "linear_conv_kernel_dim": 3, "vocab_size": 61},
    {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "intermediate_size": 33},
    {"head_dim": 32, "rope_parameters": YARN, "max_position_embeddings": 400},
)
LONGEST = 150  # tokens of a stream; past two tiles of 64 and nine chunks of 16
CANARY = 777.0
STREAMS = 2


class System(NamedTuple):
    """A target with the streams of tokens that laws run through it."""

    params: fspec.TargetParams
    streams: tuple[list[int], ...]


@cache
def system(variant: int, dtype: torch.dtype) -> System:
    """Build random target number `variant`."""
    config_dict = toy_config_dict(**VARIANTS[variant])
    config = parse(config_dict)
    tensors = {
        name.removeprefix("model."): tensor
        for name, tensor in toy_state_dict(config_dict, seed=variant).items()
    }
    random = torch.Generator().manual_seed(1000 + variant)
    streams = tuple(
        torch.randint(config.vocab, (LONGEST,), generator=random).tolist()
        for _ in range(STREAMS)
    )
    return System(fspec.build_target(config, tensors, dtype), streams)


def with_kernels(**versions: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a wrong version of `system`, whose targets run wrong kernels.

    `versions` are by the kernel's name; each makes the wrong one of the right one.
    """

    def wrong(right: Callable[[int, torch.dtype], System]) -> Callable[..., System]:
        def system(variant: int, dtype: torch.dtype) -> System:
            params, streams = right(variant, dtype)
            kernels: Any = params.kernels
            made = {name: f(getattr(kernels, name)) for name, f in versions.items()}
            params = params._replace(kernels=replace(kernels, **made))
            return System(params, streams)

        return system

    return wrong


def poisoned(
    params: fspec.TargetParams,
    drafters: tuple[fspec.Drafter, ...],
    *,
    batch: int,
    capacity: int,
    width: int,
    page_size: int,
    seed: int,
) -> tuple[PagePool, tuple]:
    """Make (target, *drafter states) with everything that is not theirs poisoned.

    Pages lie in random places, one spare slot stands between requests, memory that
    holds no committed row is NaN, and canaries stand in page 0 and in the last page.
    """
    each = -(-capacity // page_size)
    slots = 2 * batch
    room = Room(slots, batch * each + 4, page_size, each)
    sizes = room._asdict()
    target = target_state(params.config, params.embed, width=width, **sizes)
    states = target, *(drafter.init(params, room) for drafter in drafters)
    places = 1 + torch.randperm(
        room.pages - 2, generator=torch.Generator().manual_seed(seed)
    )
    pool = PagePool(torch.ones(room.pages, dtype=torch.int64))
    index = torch.arange(batch) * 2 + 1
    tables = torch.full((slots, each), -1)
    for i, slot in enumerate(index.tolist()):
        tables[slot] = places[i * each : (i + 1) * each]
    spare = places[batch * each :]
    pool.references[spare] = 0
    return pool, tuple(_poison(state, params.config, index, tables) for state in states)


def _poison(state, config: TargetConfig, index: Tensor, tables: Tensor):
    if hasattr(state, "pages"):
        state = state._replace(pages=_poison_pages(state.pages, tables))
    if isinstance(state, fspec.TargetState):
        history = config.conv - 1
        state.delta.rows[:, :, history:] = torch.nan
        idle = torch.ones(state.delta.s.shape[1], dtype=torch.bool)
        idle[index] = False
        state.delta.s[:, idle] = torch.nan
        state.delta.rows[:, idle] = torch.nan
    if isinstance(state, MTPState):
        state = state._replace(hidden=torch.full_like(state.hidden, torch.nan))
    return state._replace(slots=index) if hasattr(state, "slots") else state


def _poison_pages(pages: KVPages, tables: Tensor) -> KVPages:
    for arena in (pages.k, pages.v):
        arena[:] = torch.nan
        arena[:, 0] = CANARY
        arena[:, -1] = CANARY
    return pages._replace(table=tables.clone())


def canaries_live(states: tuple) -> bool:
    """Whether page 0 and the last page of every arena are as they were made."""
    arenas = [
        arena
        for state in states
        if hasattr(state, "pages")
        for arena in (state.pages.k, state.pages.v)
    ]
    return all(bool((a[:, [0, -1]] == CANARY).all()) for a in arenas)
