"""What the bench continues: held-out prompts, and fspec's own source for length."""

import json
from importlib import resources

from fspec.text import Tokenizer


def held_out(count: int) -> list[str]:
    """Return `count` of the 29 held-out prompts, evenly spread over their file.

    None of them is in the training text of the embedded model; the file names each
    one's source and licence.
    """
    file = resources.files("fspec") / "models" / "tiny" / "eval_prompts.jsonl"
    texts = [json.loads(line)["prompt"] for line in file.read_text().splitlines()]
    return [texts[i * len(texts) // count] for i in range(count)]


def long_text(tokenizer: Tokenizer, tokens: int) -> list[int]:
    """Return `tokens` ids of fspec's own source, repeated where it ends."""
    package = resources.files("fspec")
    names = ("generation.py", "text.py", "config.py", "checkpoint.py")
    source = "".join(package.joinpath(name).read_text("utf-8") for name in names)
    ids = tokenizer.encode(source)
    return (ids * (tokens // len(ids) + 1))[:tokens]
