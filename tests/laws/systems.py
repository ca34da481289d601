"""Random targets, token streams, and poisoned states to run laws on."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
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
from tests.laws.settings import VARIANTS as VARIANTS
from tests.laws.settings import Setting, on_cpu
from tests.toy import toy_config_dict, toy_state_dict
from tests.toy_config import parse

CANARY = 777.0
STREAMS = 2


class System(NamedTuple):
    """A target with the streams of tokens that laws run through it."""

    params: fspec.TargetParams
    streams: tuple[list[int], ...]


def system(variant: int, setting: Setting | torch.dtype) -> System:
    """Build random target number `variant`; a dtype stands for the CPU's setting."""
    if isinstance(setting, torch.dtype):
        setting = on_cpu(setting)
    return (_large if setting.large else _small)(variant, setting)


def _build(variant: int, setting: Setting) -> System:
    config_dict = toy_config_dict(**setting.variants[variant])
    config = parse(config_dict)
    place = {"dtype": setting.dtype, "device": setting.device} if setting.large else {}
    tensors = {
        name.removeprefix("model."): tensor
        for name, tensor in toy_state_dict(config_dict, seed=variant, **place).items()
    }
    random = torch.Generator().manual_seed(1000 + variant)
    streams = tuple(
        torch.randint(config.vocab, (setting.longest,), generator=random).tolist()
        for _ in range(STREAMS)
    )
    params = fspec.build_target(config, tensors, setting.dtype, setting.device)
    return System(packed(params, setting, variant), streams)


_small = cache(_build)
_large = lru_cache(maxsize=2)(_build)


def packed(
    params: fspec.TargetParams, setting: Setting, variant: int = 0
) -> fspec.TargetParams:
    """Pack a dense target as a setting packs variant number `variant`."""
    if not setting.packings:
        return params
    group, symmetric = setting.packings[variant % len(setting.packings)]
    return fspec.pack_target(params, group, symmetric)


def ints(params: fspec.TargetParams, values: Any) -> Tensor:
    """Make a tensor of integers where the target is."""
    return torch.tensor(values, device=params.embed.device)


def random_tokens(params: fspec.TargetParams, *shape: int, seed: int) -> Tensor:
    """Draw token ids, the same ones on every device."""
    random = torch.Generator().manual_seed(seed)
    vocab = params.config.vocab
    drawn = torch.randint(vocab, shape, generator=random, device="cpu")
    return drawn.to(params.embed.device)


def with_kernels(**versions: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a wrong version of `system`, whose targets run wrong kernels.

    `versions` are by the kernel's name; each makes the wrong one of the right one.
    """

    def wrong(right: Callable[[int, Setting], System]) -> Callable[..., System]:
        def system(variant: int, setting: Setting) -> System:
            params, streams = right(variant, setting)
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
    random = torch.Generator().manual_seed(seed)
    places = 1 + torch.randperm(room.pages - 2, generator=random, device="cpu")
    # the pool and its pages are the host's, whatever holds the arenas
    pool = PagePool(torch.ones(room.pages, dtype=torch.int64, device="cpu"))
    device = params.embed.device
    index = torch.arange(batch, device=device) * 2 + 1
    tables = torch.full((slots, each), -1, device=device)
    for i, slot in enumerate(index.tolist()):
        tables[slot] = places[i * each : (i + 1) * each].to(device)
    spare = places[batch * each :]
    pool.references[spare] = 0
    return pool, tuple(_poison(state, params.config, index, tables) for state in states)


def _poison(state, config: TargetConfig, index: Tensor, tables: Tensor):
    if hasattr(state, "pages"):
        state = state._replace(pages=_poison_pages(state.pages, tables))
    if isinstance(state, fspec.TargetState):
        history = config.conv - 1
        state.delta.rows[:, :, history:] = torch.nan
        idle = torch.ones_like(state.delta.s[0, :, 0, 0, 0], dtype=torch.bool)
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
