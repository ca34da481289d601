"""Who races: fspec with each drafter, and transformers, on one checkpoint."""

import importlib
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fspec.algorithms.lookup import lookup
from fspec.algorithms.mtp import mtp
from fspec.algorithms.none import none
from fspec.errors import RequestError
from fspec.generation import generate
from fspec.layers.decoder import TargetParams
from fspec.types import Drafter

BASELINE = "transformers"


class Outcome(NamedTuple):
    """One continuation of one prompt.

    seconds_prefill: until the first token was known; seconds_decode: from there on.
    accepted: drafts kept in each cycle; empty without cycles.
    """

    tokens: list[int]
    seconds_prefill: float
    seconds_decode: float
    accepted: list[int]


class Contender(NamedTuple):
    """A name and a greedy continuation of prompt ids."""

    name: str
    run: Callable[[list[int]], Outcome]


def fspec_contenders(
    params: TargetParams, width: int, max_tokens: int
) -> list[Contender]:
    """Make fspec's contenders: one token at a time, prompt lookup, the MTP head."""
    return [
        Contender(
            drafter.name, partial(_generate, params, drafter, max_tokens=max_tokens)
        )
        for drafter in (none(), lookup(width), mtp(width))
    ]


def need_transformers() -> None:
    """Check that transformers can be imported.

    Raises:
        RequestError: it is not installed; the message says what to do.
    """
    if importlib.util.find_spec("transformers") is None:
        raise RequestError(
            "bench compares with transformers, which is not installed: run "
            "`pip install -e '.[test]'` in the clone, or `make bench`"
        )


def transformers_contender(folder: Path, max_tokens: int) -> Contender:
    """Make transformers' own `generate` on the checkpoint, fp32.

    Raises:
        RequestError: transformers is not installed.
    """
    need_transformers()
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Contender(BASELINE, partial(_their_generate, model.eval(), max_tokens))


class _FirstToken:
    """A streamer that notes when the first new token came, and nothing else."""

    def __init__(self) -> None:
        self.puts = 0
        self.at = 0.0

    def put(self, value: Any) -> None:
        self.puts += 1
        if self.puts == 2:  # the prompt is put first
            self.at = time.perf_counter()

    def end(self) -> None:
        pass


def _generate(
    params: TargetParams, drafter: Drafter, prompt: list[int], *, max_tokens: int
) -> Outcome:
    done = generate(params, prompt, drafter, max_tokens=max_tokens)
    return Outcome(
        done.token_ids, done.seconds_prefill, done.seconds_decode, done.accepted
    )


def _their_generate(model: Any, max_tokens: int, prompt: list[int]) -> Outcome:
    first = _FirstToken()
    begin = time.perf_counter()
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        streamer=first,
    )
    end = time.perf_counter()
    return Outcome(out[0, len(prompt) :].tolist(), first.at - begin, end - first.at, [])
