"""Where the time of a cycle goes, without a patch or a profiler.

The five functions are called one by one, as `compose` does, and timed. Before every
cycle its products, attention and delta rule are run by themselves on the same state.
The same is done with a target of the same layers and next to no numbers: that is
dispatch. What a part takes beyond it is work; what the parts leave of the cycle is
elementwise work and the rest. So the table adds up to the cycle by construction.
"""

import time
from collections.abc import Callable, Sequence
from statistics import mean
from typing import NamedTuple

import torch

from fspec.algorithms.accept import accept, commit_sampling
from fspec.algorithms.commit import commit_
from fspec.algorithms.step import DecodeState, committed, compose
from fspec.algorithms.verify import form_block, verify
from fspec.bench.context import prefilled
from fspec.bench.parts import (
    count_calls,
    cycle_products,
    inputs,
    run_attention,
    run_delta,
    run_products,
    shrunken,
)
from fspec.layers.decoder import TargetParams
from fspec.types import Drafter

WARM = 2  # cycles before the first that counts


class Functions(NamedTuple):
    """Seconds of a cycle in each of the five functions."""

    propose: float
    verify: float
    accept: float
    commit: float
    absorb: float


class Parts(NamedTuple):
    """Seconds of a cycle in each part; they add up to the cycle."""

    products: float
    attention: float
    delta_rule: float
    rest: float

    @property
    def total(self) -> float:
        """The cycle."""
        return sum(self)


class Breakdown(NamedTuple):
    """One cycle of a drafter, averaged over a run: the run of median time.

    rows: block rows that every cycle commits, whatever the target says, so that the
        real and the shrunken target do the same.
    parts: all of their time. dispatch: the share of it in Python and dispatch.
    calls: library calls of a cycle, views included.
    """

    drafter: str
    context: int
    rows: int
    parts: Parts
    dispatch: Parts
    functions: Functions
    calls: int


def measure_cycle(
    params: TargetParams,
    drafter: Drafter,
    text: Sequence[int],
    rows: int,
    runs: int,
    cycles: int = 16,
) -> Breakdown:
    """Break a cycle of `none` or `mtp` down to its parts.

    Args:
        params: the target.
        drafter: whose cycle.
        text: ids of the context, and one more.
        rows: block rows to commit each cycle, 1…width+1.
        runs: interleaved runs of the real and the shrunken target.
        cycles: cycles of a run.
    """
    small = shrunken(params)
    folded = [token % small.config.vocab for token in text]
    found = []
    for _ in range(runs):
        real, functions = _run(params, drafter, text, rows, cycles)
        dispatch, _ = _run(small, drafter, folded, rows, cycles)
        found.append((real, dispatch, functions))
    found.sort(key=lambda run: run[0].total)
    real, dispatch, functions = found[len(found) // 2]
    context = len(text) - 1
    calls = _calls(params, drafter, text)
    return Breakdown(drafter.name, context, rows, real, dispatch, functions, calls)


@torch.no_grad()
def run_cycle(
    params: TargetParams, drafter: Drafter, state: DecodeState, rows: int
) -> tuple[DecodeState, Functions]:
    """Run the cycle of `compose(drafter).step_` by hand, committing `rows` rows.

    The state's memory is used; the sampling state stays as it is.
    """
    target, draft, boundary, sampling = state
    at = [time.perf_counter()]
    proposal = drafter.propose(params, draft, boundary, sampling)
    at.append(time.perf_counter())
    verdict = verify(params, target, form_block(boundary, proposal, sampling))
    at.append(time.perf_counter())
    acceptance = accept(verdict, sampling)
    commit_sampling(sampling, acceptance)
    acceptance = acceptance._replace(rows=torch.tensor([rows]))
    at.append(time.perf_counter())
    target = commit_(params, target, verdict, acceptance.rows)
    at.append(time.perf_counter())
    draft = drafter.absorb_(params, draft, committed(verdict, acceptance))
    at.append(time.perf_counter())
    times = (end - begin for begin, end in zip(at, at[1:], strict=False))
    after = DecodeState(target, draft, verdict.choice[:, rows - 1], sampling)
    return after, Functions(*times)


def _run(
    params: TargetParams, drafter: Drafter, text: Sequence[int], rows: int, cycles: int
) -> tuple[Parts, Functions]:
    spare = (cycles + WARM + 1) * (drafter.width + 1)
    state = prefilled(params, drafter, text, [len(text) - 1], spare)[0].take()
    products = cycle_products(params, drafter.width, rows)
    x = inputs(products)
    parts, functions = [], []
    for _ in range(cycles + WARM):
        alone = _alone(params, state, drafter.width, lambda: run_products(products, x))
        state, times = run_cycle(params, drafter, state, rows)
        parts.append(alone._replace(rest=sum(times) - sum(alone)))
        functions.append(times)
    return (
        Parts._make(map(mean, zip(*parts[WARM:], strict=True))),
        Functions._make(map(mean, zip(*functions[WARM:], strict=True))),
    )


@torch.no_grad()
def _alone(
    params: TargetParams, state: DecodeState, width: int, products: Callable[[], None]
) -> Parts:
    return Parts(
        seconds(products),
        seconds(lambda: run_attention(params, state, width)),
        seconds(lambda: run_delta(params, state, width)),
        0.0,
    )


def seconds(run: Callable[[], object]) -> float:
    """Time one call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _calls(params: TargetParams, drafter: Drafter, text: Sequence[int]) -> int:
    spare = 2 * (drafter.width + 1)
    handle = prefilled(params, drafter, text, [len(text) - 1], spare)[0]
    step = compose(drafter).step_
    return sum(count_calls(lambda: step(params, handle)).values())
