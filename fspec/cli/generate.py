"""`fspec generate`: continue a prompt, streamed as it is accepted or as JSON."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import fspec
from fspec.algorithms.base import MAX_WIDTH
from fspec.cli.report import (
    acceptance_by_position,
    acceptance_length,
    machine,
    summary,
)
from fspec.device import DEVICES, describe, find_device
from fspec.errors import RequestError
from fspec.text import check_stops, load_tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DRAFTERS = ("none", "lookup", "mtp")


def run_generate(
    prompt: Annotated[
        str | None, typer.Option(help="The text to continue; else --file or stdin.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="A UTF-8 file to continue.")
    ] = None,
    drafter: Annotated[
        str, typer.Option(help="none, lookup (n-grams of the text) or mtp.")
    ] = "mtp",
    width: Annotated[
        int, typer.Option(help=f"Drafts a cycle, 1…{MAX_WIDTH}; none drafts 0.")
    ] = 7,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; repeatable.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint folder; default: the embedded one.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[
        str, typer.Option(help=f"Where it runs: {', '.join(DEVICES)}.")
    ] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, no stream.")
    ] = False,
) -> None:
    """Continue a prompt greedily; the text is the same for every drafter and width."""
    check_options(drafter, width, max_tokens, dtype, threads)
    place = find_device(device)
    stops = check_stops(stop or [])
    text = read_prompt(prompt, file)
    folder = model_folder(model)
    if threads:
        torch.set_num_threads(threads)
    params = fspec.load_target(folder, DTYPES[dtype], place)
    tokenizer = load_tokenizer(folder)
    generation = fspec.generate(
        params,
        tokenizer.encode(text),
        make_drafter(drafter, width),
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        stop=stops,
        on_text=None if as_json else write_text,
    )
    if not as_json:
        if sys.stdout.isatty() and not generation.text.endswith("\n"):
            sys.stderr.write("\n")
        sys.stderr.write(f"{summary(generation)}, on {describe(place)}\n")
        return
    asked = {
        "drafter": drafter,
        "width": 0 if drafter == "none" else width,
        "model": "embedded" if model is None else model,
        "dtype": dtype,
    }
    sys.stdout.write(json.dumps(as_record(generation) | asked | machine(place)) + "\n")


def check_options(
    drafter: str, width: int, max_tokens: int, dtype: str, threads: int | None
) -> None:
    """Check what can be checked before anything is read.

    Raises:
        RequestError: a value is unknown or out of range.
    """
    if drafter not in DRAFTERS:
        raise RequestError(f"--drafter {drafter}: expected {', '.join(DRAFTERS)}")
    lowest = 0 if drafter == "none" else 1
    if not lowest <= width <= MAX_WIDTH:
        raise RequestError(f"--width {width}: expected {lowest} to {MAX_WIDTH}")
    if max_tokens < 1:
        raise RequestError(f"--max-tokens {max_tokens}: expected 1 or more")
    if dtype not in DTYPES:
        raise RequestError(f"--dtype {dtype}: expected {', '.join(DTYPES)}")
    if threads is not None and threads < 1:
        raise RequestError(f"--threads {threads}: expected 1 or more")


def read_prompt(prompt: str | None, file: str | None) -> str:
    """Return the prompt text from the option, the file, or else stdin.

    Raises:
        RequestError: both are given, it cannot be read, is not UTF-8, or is empty.
    """
    if prompt is not None and file is not None:
        raise RequestError("--prompt and --file are both given: expected one of them")
    if prompt is not None:
        name, data = "--prompt", prompt.encode(errors="surrogateescape")
    elif file is not None:
        name, data = file, _contents(lambda: Path(file).read_bytes(), file)
    else:
        name, data = "stdin", _contents(lambda: sys.stdin.buffer.read(), "stdin")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{name}: not valid UTF-8 at byte {error.start}") from error
    if not text:
        raise RequestError(f"{name}: the prompt is empty")
    return text


def model_folder(model: str | None) -> Path:
    """Return the checkpoint folder: the embedded one for None.

    Raises:
        RequestError: there is no such folder.
    """
    if model is None:
        return fspec.embedded_path()
    folder = Path(model)
    if not folder.is_dir():
        raise RequestError(f"--model {model}: no such folder")
    return folder


def make_drafter(name: str, width: int) -> fspec.Drafter:
    """Return the drafter of that name; `none` has no width."""
    if name == "mtp":
        return fspec.mtp(width)
    return fspec.lookup(width) if name == "lookup" else fspec.none()


def as_record(generation: fspec.Generation) -> dict[str, Any]:
    """Return what was generated, and how, as JSON values."""
    return {
        "token_ids": list(generation.token_ids),
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "cycles": generation.cycles,
        "accepted_per_cycle": list(generation.accepted),
        "acceptance_length": acceptance_length(generation.accepted),
        "acceptance_by_position": acceptance_by_position(
            generation.accepted, generation.drafted
        ),
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": len(generation.token_ids),
        "seconds_prefill": generation.seconds_prefill,
        "seconds_decode": generation.seconds_decode,
    }


def write_text(delta: str) -> None:
    """Write text to stdout now, as UTF-8 bytes on every system."""
    sys.stdout.buffer.write(delta.encode())
    sys.stdout.buffer.flush()


def _contents(read: Callable[[], bytes], name: str) -> bytes:
    try:
        return read()
    except OSError as error:
        raise RequestError(f"{name}: {error.strerror or error}") from error
    except (ValueError, AttributeError) as error:  # NUL in the path; stdin closed
        raise RequestError(f"{name}: cannot be read") from error
