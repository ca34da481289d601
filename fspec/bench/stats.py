"""The small maths of a benchmark: medians, ratios, bytes, goals."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from fspec.config import TargetConfig


class Spread(NamedTuple):
    """Median and extremes of repeated measurements."""

    median: float
    low: float
    high: float


class Goal(NamedTuple):
    """A number that is aimed at. Missing it is printed and changes nothing else."""

    name: str
    target: str
    value: str
    met: bool

    def line(self) -> str:
        """Say it in one line; a missed goal ends in MISSED."""
        end = "" if self.met else "  MISSED"
        return f"{self.name}: target: {self.target}, reached: {self.value}{end}"


def spread(values: Sequence[float]) -> Spread:
    """Return median, least and greatest of at least one value."""
    return Spread(median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the spread of `ours` over `theirs`, paired by run.

    Runs are interleaved, so what slows the machine for a while slows both of a pair.
    """
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def kv_bytes(config: TargetConfig, tokens: int, element: int) -> int:
    """Return the bytes of K and V that one new token reads after `tokens` others.

    Args:
        config: the target's sizes.
        tokens: committed tokens, each with a K and a V row in every full layer.
        element: bytes of one number.
    """
    return config.full_layers * 2 * config.kv_heads * config.head_dim * element * tokens


def context_goal(
    short: float, long: float, extra_bytes: int, bandwidth: float, most: float = 8.0
) -> Goal:
    """Judge what a longer context costs a token against the bytes it must read.

    Args:
        short: seconds of a token at the short context.
        long: seconds of a token at the long one.
        extra_bytes: bytes of K and V that the long one reads more.
        bandwidth: bytes per second that a copy moves, read and written.
        most: how many times the time of those bytes the difference may be.
    """
    share = (long - short) / (extra_bytes / bandwidth)
    return Goal(
        "long context, extra time over that of the extra KV bytes",
        f"at most {most:.1f}x",
        f"{share:.1f}x",
        share <= most,
    )


def speed_goal(ratio: float, least: float = 4.0) -> Goal:
    """Judge the MTP head's decoding speed, as a multiple of transformers'."""
    return Goal(
        "MTP over transformers, decoding",
        f"{least:.1f}x",
        f"{ratio:.1f}x",
        ratio >= least,
    )
