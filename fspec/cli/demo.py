"""`fspec demo`: one prompt with and without the MTP head, and the same bytes."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import fspec
from fspec.algorithms.base import MAX_WIDTH
from fspec.cli.report import acceptance_length, machine, summary, tokens_per_second
from fspec.text import Tokenizer, load_tokenizer

PROMPT = '''\
class Stack:
    """A last-in, first-out collection."""

    def __init__(self, items=None):
        self._items = list(items or [])

    def __len__(self):
        return len(self._items)

    def push(self, item):
        """Add an item on top."""
        self._items.append(item)

    def pop(self):
'''


def run_demo(
    width: Annotated[
        int, typer.Option(min=1, max=MAX_WIDTH, help="Drafts a cycle.")
    ] = 7,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to write.")] = 128,
) -> None:
    """Write Python with the embedded model, one token at a time and with its MTP head.

    Ends with exit code 1 if the two texts differ in one byte.
    """
    console = Console(highlight=False, soft_wrap=True)
    folder = fspec.embedded_path()
    begin = time.perf_counter()
    params, tokenizer = fspec.load_target(folder), load_tokenizer(folder)
    console.print(f"embedded model loaded in {time.perf_counter() - begin:.1f} s")
    console.rule("prompt, its last lines")
    console.print(Text("\n".join(PROMPT.splitlines()[-6:]), style="dim"))
    plain = _run(console, params, tokenizer, "none", fspec.none(), max_tokens)
    title = f"MTP head, {width} drafts a cycle"
    fast = _run(console, params, tokenizer, title, fspec.mtp(width), max_tokens)
    same = _bytes(plain) == _bytes(fast)
    console.rule("result")
    length = acceptance_length(fast.accepted)
    console.print("same bytes:", "[green]yes[/]" if same else "[bold red]NO[/]")
    if length is not None:
        console.print(f"acceptance length: {length:.2f} tokens a cycle")
    speeds = tokens_per_second(fast), tokens_per_second(plain)
    if speeds[1]:
        console.print(f"speed: {speeds[0] / speeds[1]:.2f} × one token at a time")
    here = machine(params.embed.device)
    names = ", ".join(f"{name} {here['versions'][name]}" for name in here["versions"])
    console.print(f"{names}; {here['device']}, {here['threads']} threads, float32")
    if not same:
        raise typer.Exit(1)


def _run(
    console: Console,
    params: fspec.TargetParams,
    tokenizer: Tokenizer,
    title: str,
    drafter: fspec.Drafter,
    max_tokens: int,
) -> fspec.Generation:
    console.rule("one token at a time" if title == "none" else title)
    generation = fspec.generate(
        params,
        tokenizer.encode(PROMPT),
        drafter,
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        on_text=lambda delta: console.print(Text(delta), end=""),
    )
    console.print()
    console.print(summary(generation), style="cyan")
    return generation


def _bytes(generation: fspec.Generation) -> tuple[bytes, list[int]]:
    return generation.text.encode(), list(generation.token_ids)
