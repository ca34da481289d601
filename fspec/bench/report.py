"""What a bench found, as tables for people and as JSON."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fspec.bench.context import Contexts
from fspec.bench.cycle import Breakdown
from fspec.bench.rows import RowPrice
from fspec.bench.speed import Speed
from fspec.bench.stats import Goal, Spread

PART_NAMES = (
    "products",
    "attention",
    "delta rule with conv",
    "elementwise and rest",
    "cycle",
)


class Report(NamedTuple):
    """Everything `fspec bench cpu` prints."""

    provenance: dict[str, Any]
    settings: dict[str, Any]
    prompt_tokens: list[int]
    speed: dict[str, Speed]
    contexts: Contexts
    cycles: list[Breakdown]
    rows: RowPrice
    goals: list[Goal]


def provenance(versions: Mapping[str, str], command: str) -> dict[str, Any]:
    """Say what the numbers depend on besides the code.

    Args:
        versions: of fspec, torch and Python, with the commit where it is known.
        command: what was typed, with every option.
    """
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": dict(versions) | {"transformers": metadata.version("transformers")},
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "device": "cpu",
        "dtype": "float32",
    }


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    return next(names, platform.processor() or platform.machine())


def plain(value: Any) -> Any:
    """Turn records to what JSON holds; a record becomes an object by field name."""
    fields = getattr(value, "_fields", None)
    if fields is not None:
        return plain(dict(zip(fields, value, strict=True)))
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def as_json(report: Report) -> str:
    """Return the report as one JSON object; times are seconds."""
    return json.dumps(plain(report), indent=2) + "\n"


def print_report(console: Console, report: Report) -> None:
    """Print every table, then the goals."""
    _print_provenance(console, report)
    console.print(_speed_table(report))
    console.print(_context_table(report.contexts))
    for cycle in report.cycles:
        console.print(_cycle_table(cycle))
        console.print(_functions_line(cycle))
    console.print(_rows_line(report.rows))
    for goal in report.goals:
        style = "green" if goal.met else "bold red"
        console.print(Text(goal.line(), style=style))


def _print_provenance(console: Console, report: Report) -> None:
    found = report.provenance
    names = ", ".join(
        f"{name} {version}" for name, version in found["versions"].items()
    )
    console.print(Text(f"{found['command']}   {found['date']}"))
    console.print(Text(names))
    console.print(
        Text(
            f"{found['cpu']}, {found['cores']} cores, {found['threads']} threads, load "
            f"{found['load']:.1f} at the start, {found['dtype']}"
        )
    )
    tokens = ", ".join(map(str, report.prompt_tokens))
    console.print(
        Text(f"the same tokens from every contender: yes; prompts of {tokens} tokens")
    )


def _speed_table(report: Report) -> Table:
    settings = report.settings
    title = (
        f"tokens/s, greedy, {settings['max_tokens']} new tokens, width "
        f"{settings['width']}: median (min..max) of {settings['runs']} runs"
    )
    names = ("", "decode", "x transformers", "end to end", "x transformers", "τ")
    table = _table(title, names)
    for name, speed in report.speed.items():
        length = speed.acceptance_length
        table.add_row(
            name if name == "transformers" else f"fspec {name}",
            _range(speed.decode, 1),
            _range(speed.decode_ratio, 2),
            _range(speed.end_to_end, 1),
            _range(speed.end_to_end_ratio, 2),
            "" if length is None else f"{length:.2f}",
        )
    return table


def _context_table(contexts: Contexts) -> Table:
    title = (
        "one token at a time: a step, and its KV bytes at the copy bandwidth of "
        f"{contexts.bandwidth / 1e9:.1f} GB/s (read + written)"
    )
    table = _table(title, ("context", "ms a token", "KV bytes", "ms at bandwidth"))
    for token in contexts.tokens:
        table.add_row(
            str(token.context),
            _range(token.seconds, 2, 1e3),
            f"{token.kv_bytes:,}",
            f"{token.kv_seconds * 1e3:.3f}",
        )
    return table


def _cycle_table(cycle: Breakdown) -> Table:
    total, plain_total = cycle.parts.total, sum(cycle.functions)
    title = (
        f"a cycle of {cycle.drafter} at context {cycle.context}: "
        f"{plain_total * 1e3:.2f} ms; {total * 1e3:.2f} ms under the profiler"
    )
    table = _table(title, ("part", "ms", "% of cycle", "of it dispatch", "of it work"))
    parts = zip(
        (*cycle.parts, total), (*cycle.dispatch, cycle.dispatch.total), strict=True
    )
    for name, (part, dispatch) in zip(PART_NAMES, parts, strict=True):
        numbers = (f"{x * 1e3:.2f}" for x in (part, dispatch, part - dispatch))
        whole, dispatched, work = numbers
        table.add_row(name, whole, f"{part / total:.0%}", dispatched, work)
    table.caption = (
        f"{cycle.calls} library calls, {cycle.rows} rows committed. dispatch: Python "
        "and calls, as a target of the same layers and next to no numbers takes; "
        "rest: the remainder"
    )
    return table


def _functions_line(cycle: Breakdown) -> Text:
    parts = (f"{name} {s * 1e3:.2f}" for name, s in cycle.functions._asdict().items())
    return Text(f"the same cycle by function, ms: {', '.join(parts)}\n")


def _rows_line(rows: RowPrice) -> Text:
    megabytes = rows.weight_bytes / 1e6
    return Text(
        f"the price of 8-row groups: a step's products ({megabytes:.1f} MB of weights) "
        f"take {_range(rows.eight, 2, 1e3)} ms for one row as eight, "
        f"{_range(rows.lone, 2, 1e3)} ms for one row alone: "
        f"{_range(rows.price, 2)} times\n"
    )


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _range(value: Spread, digits: int, scale: float = 1.0) -> str:
    middle, low, high = (f"{x * scale:.{digits}f}" for x in value)
    return f"{middle} ({low}..{high})"
