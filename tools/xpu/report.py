"""What `make xpu-check` prints."""

import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from tools.xpu.session import Outcome


class Tally:
    """Counts of cases and kernels."""

    def __init__(self) -> None:
        """Start at zero."""
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self.kernels: set[str] = set()

    def add(self, outcome: Outcome) -> None:
        """Count one case."""
        kind = outcome.phase if outcome.reject is None else "controls"
        self.counts[kind] += 1
        if not outcome.good:
            self.failed.append(f"{kind}: {outcome.label}")
        if outcome.reject is None:
            self.counts["configurations"] += len(outcome.kernels)
            self.kernels |= {kernel["kernel"] for kernel in outcome.kernels}

    @property
    def good(self) -> bool:
        """Nothing failed, and every part of the check had something to check."""
        parts = self.counts["native"], self.counts["run"], self.counts["controls"]
        return not self.failed and all(parts)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def show(outcome: Outcome) -> None:
    """Print a case and the kernels it compiled."""
    word = (
        ("ok" if outcome.reject is None else "rejected") if outcome.good else "FAILED"
    )
    say(f"{word:8} {outcome.phase:6} {outcome.label} ({outcome.seconds:.1f} s)")
    for k in outcome.kernels:
        units = "dpas" if k["dpas"] else "-"
        say(
            f"         {k['kernel']:24} grf {k['grf']:3} spill {k['spill']:5} "
            f"{units:4} slm {k['slm']:6} simd {k['simd']:2} warps {k['warps']:2} "
            f"{k['config']}"
        )
    if not outcome.good:
        reason = outcome.reason or f"passed, must fail with: {outcome.reject}"
        say(f"         {reason[-1500:]}")


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def _versions() -> dict[str, str]:
    home = Path(sys.prefix).parent
    names = ("torch", "triton-xpu", "intel-opencl-rt", "pyopencl")
    found = {name: version(name) for name in names}
    packages = (home / "ocloc-root" / "apt").glob("*.deb")
    for package in sorted(packages):
        name, number, *_ = package.stem.split("_")
        if name in ("intel-ocloc", "libigc2"):
            found[name] = number
    return found


def summary(tally: Tally, seconds: float) -> str:
    """Say what was checked, with what, and whether all is well."""
    counts = tally.counts
    dirty = "" if not _first_line("git", "status", "--porcelain") else " (changed)"
    return "\n".join(
        [
            "\n== summary",
            "  ".join(f"{name} {number}" for name, number in _versions().items()),
            f"commit {_first_line('git', 'rev-parse', '--short', 'HEAD')}{dirty}",
            f"native: {len(tally.kernels)} kernels in {counts['configurations']} "
            f"configurations, {counts['native']} cases",
            f"run: {counts['run']} cases against references and the row law",
            f"controls: {counts['controls']}",
            *(f"FAILED {label}" for label in tally.failed),
            f"{'all is well' if tally.good else 'NOT WELL'}, {seconds:.0f} s",
        ]
    )
