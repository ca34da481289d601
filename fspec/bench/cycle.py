"""Where the time of a cycle goes, without a patch.

The five functions are called one by one, as `compose` does, and timed; every other
cycle runs under Python's profiler, which says how long the functions of `PARTS` took
with all that they call. What they leave of the cycle is elementwise work and the rest.
The same is done with a target of the same layers and next to no numbers: what a part
takes there is dispatch, what it takes beyond that is work.
"""

import time
from collections.abc import Sequence
from cProfile import Profile
from statistics import mean
from typing import Any, NamedTuple

import torch

from fspec.algorithms.accept import accept, commit_sampling
from fspec.algorithms.commit import commit_
from fspec.algorithms.step import DecodeState, committed, compose
from fspec.algorithms.verify import form_block, verify
from fspec.bench.context import prefilled
from fspec.bench.parts import count_calls, shrunken
from fspec.layers.decoder import TargetParams
from fspec.types import Drafter

WARM = 2  # cycles before the first that counts
# a folder of fspec, or a function in a file of it; none calls one of another part
PARTS = {
    "products": ("kernels/product/",),
    "attention": ("kernels/attention/", "state/pages.py:gather_rows"),
    "delta_rule": ("kernels/delta/",),
}


class Functions(NamedTuple):
    """Seconds of a cycle in each of the five functions."""

    propose: float
    verify: float
    accept: float
    commit: float
    absorb: float


class Parts(NamedTuple):
    """Seconds of a profiled cycle in each part; they add up to it."""

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
    functions: of the cycles that ran without the profiler.
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
    """Break a cycle down to its parts.

    Args:
        params: the target.
        drafter: whose cycle.
        text: ids of the context, and one more.
        rows: block rows to commit each cycle, 1…width+1.
        runs: interleaved runs of the real and the shrunken target.
        cycles: profiled cycles of a run, and as many plain ones.
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
    block = form_block(boundary, proposal, sampling)
    verdict = verify(params, target, block, drafter.taps, logits=False)
    at.append(time.perf_counter())
    acceptance = accept(verdict, sampling)
    commit_sampling(sampling, acceptance)
    acceptance = acceptance._replace(rows=boundary.new_tensor([rows]))
    at.append(time.perf_counter())
    target = commit_(params, target, verdict, acceptance.rows)
    at.append(time.perf_counter())
    draft = drafter.absorb_(params, draft, committed(verdict, acceptance))
    at.append(time.perf_counter())
    times = (end - begin for begin, end in zip(at, at[1:], strict=False))
    after = DecodeState(target, draft, verdict.choice[:, rows - 1], sampling)
    return after, Functions._make(times)


def split_profile(stats: Sequence[Any], total: float) -> Parts:
    """Split `total` seconds by what a profile says of the functions of `PARTS`.

    A part's time is that of all calls that enter it from outside.

    Args:
        stats: `Profile.getstats()`.
        total: seconds of everything that was profiled.
    """
    seconds = dict.fromkeys(PARTS, 0.0)
    for entry in stats:
        inside = _part(entry.code)
        for call in entry.calls or ():
            part = _part(call.code)
            if part is not None and part != inside:
                seconds[part] += call.totaltime
    return Parts(**seconds, rest=total - sum(seconds.values()))


def _part(code: Any) -> str | None:
    if isinstance(code, str):  # a function of the library
        return None
    _, inside, path = code.co_filename.replace("\\", "/").rpartition("/fspec/")
    name = f"{path}:{code.co_name}"
    starts = ((part, start) for part, all_of in PARTS.items() for start in all_of)
    matches = (part for part, start in starts if _covers(start, name))
    return next(matches, None) if inside else None


def _covers(start: str, name: str) -> bool:
    return name == start or (start.endswith("/") and name.startswith(start))


def _run(
    params: TargetParams, drafter: Drafter, text: Sequence[int], rows: int, cycles: int
) -> tuple[Parts, Functions]:
    spare = (2 * cycles + WARM + 1) * (drafter.width + 1)
    state = prefilled(params, drafter, text, [len(text) - 1], spare)[0].take()
    for _ in range(WARM):
        state, _ = run_cycle(params, drafter, state, rows)
    plain, profiled, profile = [], 0.0, Profile()
    for _ in range(cycles):
        state, times = run_cycle(params, drafter, state, rows)
        plain.append(times)
        profile.enable()
        state, times = run_cycle(params, drafter, state, rows)
        profile.disable()
        profiled += sum(times)
    parts = split_profile(profile.getstats(), profiled)
    return (
        Parts._make(seconds / cycles for seconds in parts),
        Functions._make(map(mean, zip(*plain, strict=True))),
    )


def _calls(params: TargetParams, drafter: Drafter, text: Sequence[int]) -> int:
    spare = 2 * (drafter.width + 1)
    handle = prefilled(params, drafter, text, [len(text) - 1], spare)[0]
    step = compose(drafter).step_
    return sum(count_calls(lambda: step(params, handle)).values())
