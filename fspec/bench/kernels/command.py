"""The command: cases by kind, one line each, then the goals."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fspec.bench.kernels.case import Case, Line, measure, stream_bandwidth
from fspec.bench.kernels.goals import goals
from fspec.bench.kernels.mixers import (
    attention_cases,
    delta_cases,
    prefill_attention_cases,
    small_cases,
)
from fspec.bench.kernels.products import (
    dense_cases,
    head_cases,
    packed_cases,
    prefill_cases,
)
from fspec.bench.kernels.shapes import Draw
from fspec.device import describe, find_device
from fspec.errors import UnsupportedError
from fspec.kernels import kernels_on
from fspec.kernels.base import Kernels

KINDS: dict[str, Callable[[Kernels, Draw], Iterator[Case]]] = {
    "product": dense_cases,
    "prefill": prefill_cases,
    "packed": packed_cases,
    "head": head_cases,
    "small": small_cases,
    "attention": attention_cases,
    "attention-prefill": prefill_attention_cases,
    "delta": delta_cases,
}


@torch.inference_mode()
def run_kernels(
    device: str, kinds: list[str], save: Path | None, versions: Mapping[str, str]
) -> bool:
    """Check and time kernels, print a table and the goals.

    Returns:
        Whether every kernel was right.

    Raises:
        UnsupportedError: a device without Triton kernels, or a kind that is not there.
    """
    place = find_device(device)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if place.type == "cpu" or unknown:
        raise UnsupportedError(
            f"device {device} and kinds {kinds} were given; kernels are timed on cuda "
            f"or xpu, in the kinds {', '.join(KINDS)}"
        )
    ops, draw = kernels_on(place), Draw(place)
    console = Console(highlight=False, width=150)
    about = _about(place, versions)
    console.print(json.dumps(about))
    stream = stream_bandwidth(place)
    _free(place)
    console.print(f"streaming read: {stream / 1e6:.3f} TB/s")
    lines: list[Line] = []
    for kind in kinds or KINDS:
        found = [measure(case, place) for case in KINDS[kind](ops, draw)]
        console.print(_table(kind, found, stream))
        lines += found
        _free(place)
    reached = list(goals(lines, stream))
    for goal in reached:
        console.print(goal.line())
    red = [line for line in lines if line.red]
    for line in red:
        console.print(f"RED, not timed: {line.name}: {line.red}")
    if save is not None:
        _save(save, about, stream, lines, [goal._asdict() for goal in reached])
    return not red


def _about(place: torch.device, versions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": describe(place),
        "versions": dict(versions) | {"triton": metadata.version("triton")},
    }


def _table(kind: str, lines: list[Line], stream: float) -> Table:
    table = Table(title=kind, title_justify="left")
    for column in ("kernel", "us", "MB", "of stream", "library us", "x", "library"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for line in lines:
        library = line.library_us == line.library_us  # NaN where there is none
        table.add_row(
            line.name,
            "RED" if line.red else f"{line.us:.1f}",
            f"{line.size / 1e6:.1f}",
            "" if line.red else f"{line.fraction(stream):.3f}",
            f"{line.library_us:.1f}" if library else "",
            f"{line.ratio:.2f}" if library else "",
            line.other,
        )
    return table


def _save(
    path: Path,
    about: dict[str, Any],
    stream: float,
    lines: list[Line],
    reached: list[dict[str, Any]],
) -> None:
    found = [line._asdict() for line in lines]
    data = {"about": about, "stream": stream, "lines": found, "goals": reached}
    path.write_text(json.dumps(data, indent=1))


def _free(place: torch.device) -> None:
    torch.get_device_module(place.type).empty_cache()
