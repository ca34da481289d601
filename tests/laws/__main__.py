"""Long runs of the laws: `python -m tests.laws --examples 2000 --seed 1`.

Work is cut into units. On a CPU several processes share them and finished ones are
noted in a progress file, so that a run that was broken off goes on where it stopped.
`--device cuda` runs one after another in one process, and `--minutes` ends a run after
the unit that is under way. Ends with a table to paste into LOG.md.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from fspec.device import find_device
from tests.laws import ALL, base, trio
from tests.laws.report import provenance, table
from tests.laws.settings import names

LAWS = {law.name: law for law in ALL}
UNIT = {"cpu": 100, "cuda": 20}  # examples
CUTS = {"fp32": (1, 2, 4)}  # quarters of a prompt; elsewhere it is whole
EXPECTED = ("cuda-fp32",)  # the CPU's are in tests/compiled/test_trio.py


def main() -> int:
    """Run all units that the progress file does not have; 1 if one failed."""
    options = _options()
    find_device(options.device)  # before anything is run
    units = _units(options)
    done = _read(options.progress)
    waiting = [unit for unit in units if unit not in done]
    _say(f"{len(units)} units, {len(units) - len(waiting)} done before")
    end = time.monotonic() + 60 * options.minutes
    run = _in_order if options.device == "cuda" else _in_parallel
    for unit, result in run(waiting, end, options.jobs):
        done[unit] = result
        if options.progress is not None:
            options.progress.write_text(json.dumps(done, indent=1))
        _say(f"{unit} {result['result']} {result['seconds']:.1f} s")
    found = {unit: done[unit] for unit in units if unit in done}
    _say("\n" + "\n".join(table(found)))
    _say(f"\n{len(found)} of {len(units)} units were run. {provenance(options.device)}")
    return int(any(d["result"].startswith("BROKEN") for d in found.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--examples", type=int, default=2000, help="of a law in a setting"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--settings", nargs="*", help="names; all of the device")
    parser.add_argument("--laws", nargs="*", help="names, `trio` too; all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--progress", type=Path, help="laws-progress.json on a CPU")
    options = parser.parse_args()
    _check(parser, options.settings, names(options.device))
    _check(parser, options.laws, (*LAWS, "trio"))
    if options.progress is None and options.device == "cpu":
        options.progress = Path("laws-progress.json")
    return options


def _check(
    parser: argparse.ArgumentParser, given: list[str] | None, known: tuple[str, ...]
) -> None:
    unknown = [name for name in given or () if name not in known]
    if unknown:
        parser.error(f"{unknown} were given; known here: {', '.join(known)}")


def _units(options: argparse.Namespace) -> list[str]:
    settings = options.settings or names(options.device)
    laws = options.laws or (*LAWS, "trio")
    size, total = UNIT[options.device], options.examples
    rounds = [
        [
            f"{law} {setting} {options.seed} {first} {min(size, total - first)}"
            for setting in settings
            for law in LAWS
            if law in laws
        ]
        for first in range(0, total, size)
    ]
    real = _real(options, settings) if "trio" in laws else []
    # on a GPU some of everything comes first, for its time may end
    split = 1 if options.device == "cuda" else len(rounds)
    parts = [*rounds[:split], real, *rounds[split:]]
    return [unit for part in parts for unit in part]


def _real(options: argparse.Namespace, settings: tuple[str, ...]) -> list[str]:
    known = [name for name in trio.NAMES[options.device] if name in settings]
    prompts = [
        f"trio {name} {options.seed} {prompt} {cut}"
        for name in known
        for prompt in range(len(trio.prompts()))
        for cut in CUTS.get(name, (4,))
    ]
    cases = [
        f"expected {name} {options.seed} {case} 1"
        for name in known
        if name in EXPECTED
        for case in range(len(trio.expected()))
    ]
    return cases + prompts


def _in_order(units: list[str], end: float, jobs: int) -> Iterator[tuple[str, dict]]:
    for unit in units:
        if time.monotonic() > end:
            return
        result = _run(unit)
        yield unit, result
        if "CUDA error" in result["result"]:
            return  # whatever this process would do there now fails


def _in_parallel(units: list[str], end: float, jobs: int) -> Iterator[tuple[str, dict]]:
    with ProcessPoolExecutor(jobs, initializer=_one_thread) as pool:
        futures = {pool.submit(_run, unit): unit for unit in units}
        for future in as_completed(futures):
            if not future.cancelled():
                yield futures[future], future.result()
            if time.monotonic() > end:
                for other in futures:
                    other.cancel()


def _run(unit: str) -> dict:
    name, setting, *numbers = unit.split()
    seed, first, last = map(int, numbers)
    begin = time.perf_counter()
    try:
        if name == "trio":
            result = trio.check(first, last, setting, seed)
        elif name == "expected":
            result = trio.compare_expected(first, setting)
        else:
            base.run(LAWS[name], setting, last, seed * 1_000_003 + first)
            result = "holds"
    except Exception as error:  # noqa: BLE001, reported, and the run goes on
        notes = " | ".join(getattr(error, "__notes__", []))
        result = f"BROKEN {type(error).__name__}: {error} {notes}".strip()
    return {"result": result, "seconds": time.perf_counter() - begin}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _one_thread() -> None:
    torch.set_num_threads(1)


def _read(path: Path | None) -> dict[str, dict]:
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
