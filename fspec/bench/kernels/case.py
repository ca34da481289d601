"""One line of the bench: a check, then a time, its bytes, and the library's time."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fspec.bench.kernels.jit import stream_kernel
from fspec.device import record

REPEATS = 7
LEAST = 3
STREAM_BYTES = 4 << 30
SEVERAL = 800 << 20  # bytes of weights to rotate through, well past any cache


class Case(NamedTuple):
    """What is checked and timed.

    name: of the kernel and its sizes.
    check: says what is wrong, or nothing; a wrong kernel is not timed.
    calls: launches of the same work on rotating operands.
    size: bytes that the work must move.
    library: the same for the library, where it has the work; and its name.
    """

    name: str
    check: Callable[[], str]
    calls: Sequence[Callable[[], object]]
    size: int
    library: Sequence[Callable[[], object]] = ()
    other: str = ""


class Line(NamedTuple):
    """A measured case: microseconds of a call, and what is wrong where it is red."""

    name: str
    red: str
    us: float
    size: int
    library_us: float
    other: str

    def fraction(self, stream: float) -> float:
        """Share of the streaming bandwidth (bytes a microsecond) that it reached."""
        return self.size / self.us / stream

    @property
    def ratio(self) -> float:
        """Library's time over ours."""
        return self.library_us / self.us


def measure(case: Case, device: torch.device) -> Line:
    """Check a case and, if it is right, time it."""
    red = case.check()
    if red:
        return Line(case.name, red, float("nan"), case.size, float("nan"), case.other)
    us = time_calls(case.calls, device)
    library = time_calls(case.library, device) if case.library else float("nan")
    return Line(case.name, "", us, case.size, library, case.other)


def time_calls(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Microseconds of one call: median of replays of a graph of all of them.

    At least `LEAST` a graph: a lone call would be timed from a cold start.
    """
    calls = [*calls] * -(-LEAST // len(calls))

    def all_calls() -> None:
        for call in calls:
            call()

    replay = record(all_calls, device)
    times = [replay() for _ in range(REPEATS)]
    return statistics.median(times) / len(calls) * 1e6


def stream_bandwidth(device: torch.device) -> float:
    """Best bandwidth of a plain read, in bytes a microsecond."""
    words = torch.randint(1 << 30, (STREAM_BYTES // 4,), device=device).int()
    out = words.new_empty(1 << 18)
    best = 0.0
    for block, turns in ((4096, 8), (4096, 16), (8192, 8)):
        run = stream_kernel[(len(words) // (block * turns),)]
        call = partial(run, words, out, turns, BLOCK=block, num_warps=8)  # pyright: ignore
        best = max(best, STREAM_BYTES / time_calls([call, call], device))
    return best


def unequal(a: Tensor, b: Tensor, what: str) -> str:
    """Say where two tensors differ, or nothing."""
    if torch.equal(a, b):
        return ""
    return f"{what}: {(a != b).float().mean():.1%} of the elements differ"


def far(found: Tensor, wanted: Tensor, limit: float = 4e-3) -> str:
    """Say how far a result is from a better one, or nothing within the limit."""
    a, b = found.double(), wanted.double()
    off = float((a - b).norm() / b.norm())
    return "" if off < limit else f"distance {off:.1e} from float64, limit {limit:.0e}"
