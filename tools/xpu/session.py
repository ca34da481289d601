"""Cases of one table in worker processes, whatever becomes of these."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.xpu.spec import Case

SECONDS = 400  # a table's phase; a compiler that hangs must not hang the check


class Outcome(NamedTuple):
    """How one case went; `reason` is empty where nothing failed."""

    label: str
    phase: str
    reject: str | None
    reason: str
    seconds: float
    kernels: list[dict[str, Any]]

    @property
    def good(self) -> bool:
        """It passed, or it is a control and failed for the reason it should."""
        if self.reject is None:
            return not self.reason
        return self.reject in self.reason


def environment(caches: str) -> dict[str, str]:
    """Name what the tools need to find each other."""
    home = Path(sys.prefix).parent
    return {
        **os.environ,
        "OCLOC": str(home / "ocloc"),
        "OCL_ICD_VENDORS": str(home / "icd"),
        "LD_LIBRARY_PATH": str(Path(sys.prefix, "lib")),
        "TRITON_CACHE_DIR": caches,  # empty at first: no result of an older run
        "TRITON_DISABLE_LINE_INFO": "1",
        "OMP_NUM_THREADS": "1",
    }


def run_cases(module: str, phase: str, cases: Sequence[Case]) -> Iterator[Outcome]:
    """Check cases in order; one that ends its process fails, the next go on."""
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lines")
        while done < len(cases):
            file.write_text("")
            command = [sys.executable, "-m", "tools.xpu.worker", module, phase]
            ended = _wait([*command, str(done), str(file)], environment(folder))
            for line in file.read_text().splitlines():
                yield _outcome(cases[done], phase, **json.loads(line))
                done += 1
            if ended and done < len(cases):
                yield _outcome(cases[done], phase, ended, 0.0, [])
                done += 1


def _outcome(
    case: Case, phase: str, reason: str, seconds: float, kernels: list[dict[str, Any]]
) -> Outcome:
    return Outcome(case.label, phase, case.reject, reason, seconds, kernels)


def _wait(command: list[str], environment: dict[str, str]) -> str:
    """Run a worker to its end; say what was wrong with it."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            timeout=SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"worker stopped after {SECONDS} s"
    words = " ".join(done.stdout.split()[-60:])
    return f"worker ended with {done.returncode}: {words}" if done.returncode else ""
