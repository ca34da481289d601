"""`make xpu-check`: every table of `tests/xpu`, the controls first, then a summary.

usage: python -m tools.xpu [TABLE …]     in the venv that `fetch.sh` made
"""

import sys
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tools.xpu.report import Tally, say, show, summary
from tools.xpu.session import Outcome, run_cases
from tools.xpu.spec import Case, Native, Run

TABLES = Path("tests/xpu")


def tables(chosen: list[str]) -> list[str]:
    """Name the tables, the controls first: no result counts while one passes."""
    every = sorted(p.stem for p in TABLES.glob("*.py") if p.stem[0] != "_")
    every.remove("controls")
    return ["controls", *(chosen or every)]


def outcomes(name: str) -> Iterator[Outcome]:
    """Check one table: what must compile, then what is executed."""
    module = f"tests.xpu.{name}"
    try:
        cases: list[Case] = import_module(module).CASES
    except Exception:  # noqa: BLE001, a table that does not load fails the check
        reason = traceback.format_exc(limit=-1).replace("\n", " ")
        yield Outcome(name, "import", None, reason, 0.0, [])
        return
    for phase, kind in (("native", Native), ("run", Run)):
        yield from run_cases(module, phase, [c for c in cases if isinstance(c, kind)])


def main() -> int:
    """Check the tables; 0 if all is well."""
    start, tally = time.monotonic(), Tally()
    for name in tables(sys.argv[1:]):
        say(f"\n== {name}")
        for outcome in outcomes(name):
            show(outcome)
            tally.add(outcome)
    say(summary(tally, time.monotonic() - start))
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
