"""Long runs of the laws: `python -m tests.laws --examples 2000 --seed 1`.

Work is cut into units; finished ones are noted in a progress file, so that a run that
was broken off goes on where it stopped. Ends with a table to paste into LOG.md.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from tests.laws import ALL, base, trio

LAWS = {law.name: law for law in ALL}
UNIT = 100  # examples
CUTS = {"fp32": (1, 2, 4), "bf16": (4,)}  # quarters of a prompt


def main() -> int:
    """Run all units that the progress file does not have; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="a law and dtype")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--progress", type=Path, default=Path("laws-progress.json"))
    options = parser.parse_args()
    units = _units(options.examples, options.seed)
    done = _read(options.progress)
    waiting = [unit for unit in units if unit not in done]
    _say(f"{len(units)} units, {len(units) - len(waiting)} done before")
    with ProcessPoolExecutor(options.jobs, initializer=_one_thread) as pool:
        futures = {pool.submit(_run, unit): unit for unit in waiting}
        for future in as_completed(futures):
            unit = futures[future]
            done[unit] = future.result()
            options.progress.write_text(json.dumps(done, indent=1))
            _say(f"{unit} {done[unit]['result']} {done[unit]['seconds']:.1f} s")
    return _report({unit: done[unit] for unit in units})


def _units(examples: int, seed: int) -> list[str]:
    drawn = [
        f"{law} {dtype} {seed} {first} {min(UNIT, examples - first)}"
        for first in range(0, examples, UNIT)
        for law in LAWS
        for dtype in base.DTYPES
    ]
    real = [
        f"trio {dtype} {seed} {prompt} {cut}"
        for dtype in base.DTYPES
        for prompt in range(len(trio.prompts()))
        for cut in CUTS[dtype]
    ]
    return drawn + real


def _run(unit: str) -> dict:
    name, dtype, *numbers = unit.split()
    seed, first, last = map(int, numbers)
    begin = time.perf_counter()
    try:
        if name == "trio":
            result = trio.check(first, last, dtype, seed)
        else:
            base.run(LAWS[name], dtype, last, seed * 1_000_003 + first)
            result = "holds"
    except Exception as error:  # noqa: BLE001, reported, and the run goes on
        result = f"BROKEN {type(error).__name__}: {error}"
    return {"result": result, "seconds": time.perf_counter() - begin}


def _report(done: dict[str, dict]) -> int:
    groups: dict[str, list[str]] = {}
    for unit in done:
        groups.setdefault(" ".join(unit.split()[:2]), []).append(unit)
    for group, units in groups.items():
        broken = [u for u in units if done[u]["result"].startswith("BROKEN")]
        cases = (
            len(units)
            if group.startswith("trio")
            else sum(int(u.split()[4]) for u in units)
        )
        seconds = sum(done[u]["seconds"] for u in units)
        state = f"BROKEN in {broken}" if broken else "holds"
        _say(f"| {group} | {cases} cases | {seconds:.0f} s | {state} |")
    _say(_provenance())
    failed = any(d["result"].startswith("BROKEN") for d in done.values())
    return int(failed)


def _provenance() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False)
    return (
        f"torch {torch.__version__}, python {platform.python_version()}, "
        f"{platform.machine()}, 1 thread, commit {commit.stdout.strip() or 'unknown'}"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _one_thread() -> None:
    torch.set_num_threads(1)


def _read(path: Path) -> dict[str, dict]:
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
