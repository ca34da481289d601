"""What one token costs as the context grows, beside the bytes it must read."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from fspec.algorithms.none import none
from fspec.algorithms.step import DecodeState, compose
from fspec.bench.stats import Goal, Spread, context_goal, kv_bytes, spread
from fspec.generation import PREFILL_CHUNK
from fspec.layers.decoder import TargetParams
from fspec.start import init_decode
from fspec.state.tree import Owned, copy, own
from fspec.types import Drafter

CONTEXTS = (128, 1024, 3072)
COPIED = 1 << 27  # bytes; past any cache


class OneToken(NamedTuple):
    """A token after `context` others: its time, and the K/V bytes it reads."""

    context: int
    seconds: Spread
    kv_bytes: int
    kv_seconds: float


class Contexts(NamedTuple):
    """One-token times; `bandwidth` is bytes per second of a copy, read and written."""

    bandwidth: float
    tokens: list[OneToken]
    goal: Goal


def measure_contexts(
    params: TargetParams,
    text: Sequence[int],
    steps: int,
    contexts: Sequence[int] = CONTEXTS,
) -> Contexts:
    """Time steps of `none` at each context, interleaved.

    Args:
        params: the target.
        text: ids, one more than the longest context at least.
        steps: timed steps at each context; the context grows by as many tokens.
        contexts: ascending lengths.
    """
    drafter, spare = none(), steps + 1
    step = compose(drafter).step_
    handles = prefilled(params, drafter, text, contexts, spare)
    times: list[list[float]] = [[] for _ in contexts]
    with torch.no_grad():
        for _ in range(spare):
            for at, handle in enumerate(handles):
                begin = time.perf_counter()
                handles[at], _ = step(params, handle)
                times[at].append(time.perf_counter() - begin)
    bandwidth = copy_bandwidth()
    element = params.embed.element_size()
    tokens = []
    for context, seconds in zip(contexts, times, strict=True):
        size = kv_bytes(params.config, context, element)
        tokens.append(OneToken(context, spread(seconds[1:]), size, size / bandwidth))
    first, last = tokens[0], tokens[-1]
    goal = context_goal(
        first.seconds.median,
        last.seconds.median,
        last.kv_bytes - first.kv_bytes,
        bandwidth,
    )
    return Contexts(bandwidth, tokens, goal)


@torch.no_grad()
def prefilled(
    params: TargetParams,
    drafter: Drafter,
    text: Sequence[int],
    contexts: Sequence[int],
    spare: int,
) -> list[Owned[DecodeState]]:
    """Make decoding states after the first tokens of `text`, one for each context.

    Args:
        params: the target.
        drafter: what the states are for.
        text: ids, one more than the longest context at least.
        contexts: ascending lengths.
        spare: tokens that each state may still be decoded by.
    """
    prefill = compose(drafter).prefill_
    capacity = contexts[-1] + spare + drafter.width
    state = init_decode(params, drafter, capacity=capacity, max_tokens=spare)
    handle, states, done = own(state), [], 0
    device = params.embed.device
    for context in contexts:
        while done < context:
            ids = text[done : min(context, done + PREFILL_CHUNK)]
            part = torch.tensor([ids], device=device)
            count = torch.tensor([len(ids)], device=device)
            handle, _ = prefill(params, handle, part, count)
            done += len(ids)
        boundary = torch.tensor([text[context]], device=device)
        states.append(own(copy(handle.look())._replace(boundary=boundary)))
    return states


def copy_bandwidth(repeats: int = 7) -> float:
    """Bytes per second that a copy of a large buffer moves, read and written."""
    source = torch.ones(COPIED // 4)
    target = torch.empty_like(source).copy_(source)
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - begin)
    return 2 * COPIED / spread(seconds).median
