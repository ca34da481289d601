"""The summary of a long run: a table by law and setting, and where it was made."""

import importlib.metadata
import os
import platform
import subprocess

import torch

from fspec.device import describe, find_device


def table(done: dict[str, dict]) -> list[str]:
    """Lines of a markdown table over finished units `law setting seed first count`."""
    lines = ["| law | setting | cases | seconds | result |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[str]] = {}
    for unit in done:
        law, setting, *_ = unit.split()
        groups.setdefault((law, setting), []).append(unit)
    for (law, setting), units in groups.items():
        whole = law in ("trio", "expected")
        cases = len(units) if whole else sum(int(unit.split()[4]) for unit in units)
        seconds = sum(done[unit]["seconds"] for unit in units)
        result = _result(law, {unit: done[unit]["result"] for unit in units})
        lines.append(f"| {law} | {setting} | {cases} | {seconds:.0f} | {result} |")
    return lines


def _result(law: str, results: dict[str, str]) -> str:
    broken = [unit for unit, result in results.items() if result.startswith("BROKEN")]
    if broken:
        return f"**BROKEN** in {', '.join(broken)}"
    if law == "expected":
        words = list(results.values())
        tokens = sum(word.startswith("64 of 64") for word in words)
        counts = sum(word.endswith("accepted equal") for word in words)
        return f"tokens equal in {tokens}, accepted counts in {counts} cases"
    return "holds"


def provenance(device: str) -> str:
    """Name versions, machine and commit."""
    found = find_device(device)
    where = (
        describe(found) if found.type != "cpu" else f"{platform.machine()}, 1 thread"
    )
    return (
        f"torch {torch.__version__}, triton {_version('triton')}, "
        f"python {platform.python_version()}, {where}, commit {_commit()}"
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        found = run.stdout.strip()
    except OSError:  # no git here
        found = ""
    return found or os.environ.get("FSPEC_COMMIT", "unknown")
