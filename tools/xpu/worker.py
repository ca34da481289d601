"""Runs cases in a process of their own, for a compiler's assertion ends a process.

usage: python -m tools.xpu.worker MODULE native|run FIRST FILE
One line of JSON for each case from number FIRST on is appended to FILE.
"""

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tools.xpu.driver import Driver
from tools.xpu.memory import guarded
from tools.xpu.opencl import Runtime
from tools.xpu.spec import Case, Native, Run


def check_native(case: Native, driver: Driver) -> None:
    """Compile what a case launches.

    Raises:
        AssertionError: it spills, misses the matrix units, or launches nothing.
    """
    driver.compiled.clear()
    case.launch()
    assert driver.compiled, "nothing was launched"
    for kernel in driver.compiled:
        if kernel.spill:
            raise AssertionError(f"{kernel.kernel} spills {kernel.spill} bytes")
        if case.dpas and not kernel.dpas:
            raise AssertionError(f"{kernel.kernel} uses no matrix units")


def check_run(case: Run) -> None:
    """Execute a case: near its reference, and rows alone equal to rows together.

    Raises:
        AssertionError: it is not so.
    """
    together = _call(case, 0, case.rows)
    wanted = case.wanted()
    for found, want in zip(together, wanted, strict=True):
        torch.testing.assert_close(
            found.float(), want.float(), rtol=case.rtol, atol=case.atol
        )
    for first, last in case.windows:
        alone = _call(case, first, last)
        for part, whole in zip(alone, together, strict=True):
            same = part.view(torch.uint8) == whole[first:last].view(torch.uint8)
            if not same.all():
                raise AssertionError(
                    f"row law: rows {first}…{last - 1} alone differ from "
                    f"rows 0…{case.rows - 1} together"
                )


def _call(case: Run, first: int, last: int) -> tuple[torch.Tensor, ...]:
    with guarded():
        made = case.call(first, last)
    return tuple(part.contiguous() for part in made)


def check(case: Case, driver: Driver) -> dict[str, Any]:
    """Check a case and say how it went."""
    start = time.monotonic()
    driver.compiled.clear()
    reason = ""
    with tempfile.TemporaryFile("w+") as log:
        try:
            with _output_to(log.fileno()):
                if isinstance(case, Native):
                    check_native(case, driver)
                else:
                    check_run(case)
        except Exception as error:  # noqa: BLE001, whatever it is fails the case
            log.seek(0)
            reason = _words(error) + "\n" + "\n".join(_diagnostics(log))
    return {
        "reason": reason,
        "seconds": time.monotonic() - start,
        "kernels": [kernel._asdict() for kernel in driver.compiled],
    }


@contextmanager
def _output_to(file: int) -> Iterator[None]:
    """Send what compilers print, which is not Python, to a file."""
    kept = os.dup(1), os.dup(2)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        yield
    finally:
        for number, old in enumerate(kept, 1):
            os.dup2(old, number)
            os.close(old)


def _diagnostics(log: Iterable[str]) -> list[str]:
    return [line.strip()[:400] for line in log if "error:" in line or "fail" in line]


def _words(error: BaseException | None) -> str:
    # Triton says where in the error, and what in its cause
    said = []
    while error:
        said.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return "\n".join(said)


def main(module: str, phase: str, first: str, file: str) -> None:
    """Check the cases of a module's table, of one kind."""
    kind = {"native": Native, "run": Run}[phase]
    runtime = Runtime() if phase == "run" else None
    driver = Driver(runtime).activate()  # pyright: ignore[reportAbstractUsage]
    cases = [c for c in importlib.import_module(module).CASES if isinstance(c, kind)]
    for case in cases[int(first) :]:
        line = json.dumps(check(case, driver))
        with Path(file).open("a") as out:
            out.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
