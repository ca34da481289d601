"""`fspec bench cpu`: the options, and the order in which things are measured."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.console import Console

from fspec.algorithms.base import MAX_WIDTH
from fspec.algorithms.mtp import mtp
from fspec.algorithms.none import none
from fspec.bench.contenders import (
    fspec_contenders,
    need_transformers,
    transformers_contender,
)
from fspec.bench.context import CONTEXTS, measure_contexts
from fspec.bench.cycle import measure_cycle
from fspec.bench.prompts import held_out, long_text
from fspec.bench.report import Report, as_json, print_report, provenance
from fspec.bench.rows import measure_rows
from fspec.bench.speed import RedCheckError, race
from fspec.bench.stats import speed_goal
from fspec.errors import RequestError
from fspec.load import embedded_path, load_target
from fspec.text import load_tokenizer

CYCLE_CONTEXT = 256


class Settings(NamedTuple):
    """What may be chosen; the sizes are in tokens."""

    runs: int
    prompts: int
    max_tokens: int
    width: int


def bench_app(versions: Callable[[], Mapping[str, str]]) -> typer.Typer:
    """Make the `bench` commands.

    Args:
        versions: says which fspec, torch and Python these are. It is given, since
            nothing below the command line may import it.
    """
    app = typer.Typer(add_completion=False)

    @app.callback()
    def bench() -> None:
        """Measure fspec; never a gate."""

    @app.command("cpu")
    def cpu(
        runs: Annotated[int, typer.Option(min=1, help="Interleaved runs.")] = 5,
        prompts: Annotated[int, typer.Option(min=1, max=29, help="How many.")] = 5,
        max_tokens: Annotated[int, typer.Option(min=2, help="Tokens a prompt.")] = 128,
        width: Annotated[
            int, typer.Option(min=1, max=MAX_WIDTH, help="Drafts a cycle.")
        ] = 7,
        threads: Annotated[
            int | None, typer.Option(min=1, help="CPU threads; default: torch's own.")
        ] = None,
        save: Annotated[
            Path | None, typer.Option("--json", help="Write the numbers here too.")
        ] = None,
    ) -> None:
        """Race fspec and transformers on the embedded model; see where time goes.

        Exit code 1 if two contenders write different tokens, 0 for any numbers.
        """
        if threads:
            torch.set_num_threads(threads)
        run_cpu(Settings(runs, prompts, max_tokens, width), save, versions())

    @app.command("kernels")
    def kernels(
        kinds: Annotated[
            list[str] | None, typer.Argument(help="Some kinds only, such as delta.")
        ] = None,
        device: Annotated[str, typer.Option(help="cuda or xpu.")] = "cuda",
        save: Annotated[
            Path | None, typer.Option("--json", help="Write the numbers here too.")
        ] = None,
    ) -> None:
        """Check every Triton kernel at the 27B model's sizes, then time it.

        Exit code 1 if a kernel is wrong, which is then not timed; 0 for any numbers.
        """
        # not above: Triton is not there where only a CPU is
        from fspec.bench.kernels import run_kernels

        if not run_kernels(device, kinds or [], save, versions()):
            raise typer.Exit(1)

    return app


def run_cpu(settings: Settings, save: Path | None, versions: Mapping[str, str]) -> None:
    """Measure, print, and save if asked.

    Raises:
        RequestError: transformers is missing, or `save` cannot be written.
        Exit: with code 1, after one line, where contenders write different tokens.
    """
    need_transformers()
    if save is not None and not save.absolute().parent.is_dir():
        raise RequestError(f"--json {save}: no such folder")
    try:
        report = measure(settings, versions)
    except RedCheckError as error:
        sys.stderr.write(f"fspec: red check: {error}\n")
        raise typer.Exit(1) from error
    print_report(Console(highlight=False, width=110), report)
    if save is not None:
        _write(save, as_json(report))


def measure(settings: Settings, versions: Mapping[str, str]) -> Report:
    """Measure everything, the race first.

    Raises:
        RedCheckError: contenders write different tokens; nothing is reported.
    """
    runs, prompts, max_tokens, width = settings
    folder = embedded_path()
    params, tokenizer = load_target(folder), load_tokenizer(folder)
    about = provenance(versions, _command(settings))
    ids = [tokenizer.encode(text) for text in held_out(prompts)]
    contenders = fspec_contenders(params, width, max_tokens)
    contenders.append(transformers_contender(folder, max_tokens))
    speed = race(contenders, ids, runs)
    text = long_text(tokenizer, CONTEXTS[-1] + 1)
    contexts = measure_contexts(params, text, steps=4 * runs)
    mtp_speed, short = speed["mtp"], text[: CYCLE_CONTEXT + 1]
    rows = round(mtp_speed.acceptance_length or 1)
    cycles = [
        measure_cycle(params, none(), short, 1, runs),
        measure_cycle(params, mtp(width), short, rows, runs),
    ]
    goals = [speed_goal(mtp_speed.decode_ratio.median), contexts.goal]
    return Report(
        about,
        settings._asdict(),
        [len(prompt) for prompt in ids],
        speed,
        contexts,
        cycles,
        measure_rows(params, runs),
        goals,
    )


def _command(settings: Settings) -> str:
    options = {"threads": torch.get_num_threads()} | settings._asdict()
    words = (f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    return " ".join(["fspec bench cpu", *words])


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise RequestError(f"--json {path}: {error.strerror or error}") from error
