"""What a run is told to have done: counts, speed, versions."""

import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import fspec
from fspec.device import describe


def acceptance_length(accepted: Sequence[int]) -> float | None:
    """Return accepted drafts + 1, averaged over cycles; None without a cycle."""
    return sum(accepted) / len(accepted) + 1 if accepted else None


def acceptance_by_position(
    accepted: Sequence[int], drafted: Sequence[int]
) -> list[float]:
    """Return, for draft 1, 2, …, the share of cycles offering it that kept it."""
    return [
        sum(count >= position for count in accepted)
        / sum(count >= position for count in drafted)
        for position in range(1, max(drafted, default=0) + 1)
    ]


def tokens_per_second(generation: fspec.Generation) -> float:
    """Return tokens after the first (prefill chooses that) per second of decoding."""
    rest = len(generation.token_ids) - 1
    return rest / generation.seconds_decode if rest > 0 else 0.0


def summary(generation: fspec.Generation) -> str:
    """Return one line: tokens, tokens/s, cycles and acceptance."""
    accepted = generation.accepted
    parts = [
        f"{len(generation.token_ids)} tokens ({generation.finish_reason})",
        f"{tokens_per_second(generation):.1f} tokens/s",
        f"{len(accepted)} cycles",
    ]
    if accepted:
        parts.append(f"acceptance_length {acceptance_length(accepted):.2f}")
    shares = acceptance_by_position(accepted, generation.drafted)
    if shares:
        text = " ".join(f"{share:.2f}" for share in shares)
        parts.append(f"accepted at 1…{len(shares)}: {text}")
    return ", ".join(parts)


def versions() -> dict[str, str]:
    """Return versions of fspec, torch and Python, and the commit in a clone."""
    found = {
        "fspec": fspec.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    commit = _commit(Path(__file__).parents[2])
    return found | ({"commit": commit} if commit else {})


def machine(device: torch.device) -> dict[str, Any]:
    """Return what the numbers depend on besides the model: versions, threads, device.

    Args:
        device: that the model ran on.
    """
    return {
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "device": describe(device),
    }


def _commit(root: Path) -> str | None:
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
