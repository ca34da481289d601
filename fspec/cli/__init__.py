"""The `fspec` command: its subcommands, and how it ends.

Exit codes: 0 done, 1 a check of fspec's own failed, 2 bad input (one line on
stderr), 130 interrupted, 141 the reader of stdout went away.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from fspec.bench.command import bench_app
from fspec.cli.demo import run_demo
from fspec.cli.generate import run_generate
from fspec.cli.report import versions
from fspec.errors import FspecError

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False)
app.command("generate")(run_generate)
app.command("demo")(run_demo)
app.add_typer(bench_app(versions), name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        found = versions()
        sys.stdout.write(" ".join(f"{name} {found[name]}" for name in found) + "\n")
        raise typer.Exit


@app.callback()
def fspec_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show versions."
        ),
    ] = False,
) -> None:
    """Speculative decoding for hybrid language models, the same bytes as without."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, `sys.argv` unless given, and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # Not `app()`: typer would print its own panels and catch the closed pipe.
        command = typer.main.get_command(app)
        with command.make_context("fspec", given) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as error:
        return _refuse(error.format_message())
    except FspecError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # What is still buffered must not raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _refuse(message: str) -> int:
    line = " ".join(message.split())
    safe = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    sys.stderr.write(f"fspec: {safe}\n")
    return 2
