"""Generate law on the trained model: real prompts, cut at several points."""

import json
import random
from functools import cache
from pathlib import Path

import torch

import fspec
from fspec.types import Block
from tests.laws.base import require
from tests.laws.settings import SETTINGS
from tests.laws.systems import ints, packed

DATA = Path(__file__).parents[1] / "data"
NEW_TOKENS = 32
# by device, the settings whose dtype, device and packing the model is loaded with
NAMES = {
    "cpu": ("fp32", "bf16"),
    "cuda": ("cuda-fp32", "cuda-bf16", "cuda-w4a16"),
}


@cache
def model(setting: str) -> fspec.TargetParams:
    """Load the embedded target as a setting has its targets."""
    place = SETTINGS[setting]
    return packed(fspec.load_target(dtype=place.dtype, device=place.device), place)


@cache
def prompts() -> list[list[int]]:
    """Token ids of the 29 held-out prompts."""
    tokenizer = fspec.load_tokenizer(fspec.embedded_path())
    file = fspec.embedded_path().parent / "eval_prompts.jsonl"
    lines = map(json.loads, file.read_text().splitlines())
    return [tokenizer.encode(line["prompt"]) for line in lines]


@cache
def expected() -> list[dict]:
    """Greedy continuations and accepted counts, made by transformers in fp32."""
    return json.loads((DATA / "expected.json").read_text())["prompts"]


@torch.no_grad()
def check(prompt: int, cut: int, setting: str, seed: int) -> str:
    """Check one prompt, cut to `cut` quarters of its length, with a drawn width.

    Returns:
        What was run, in words.
    """
    params = model(setting)
    ids = prompts()[prompt]
    ids = ids[: max(1, len(ids) * cut // 4)]
    width = random.Random(f"{seed} {prompt} {cut}").randint(1, 15)
    tokens, state = _one_at_a_time(params, ids)
    lengths = []
    for drafter in (fspec.none(), fspec.lookup(width), fspec.mtp(width)):
        got = fspec.generate(params, ids, drafter, max_tokens=NEW_TOKENS)
        require(got.token_ids == tokens, f"{drafter.name}: other tokens")
        after = fspec.canonical(got.state.target, params)
        require(fspec.equal(after, state), f"{drafter.name}: other state")
        lengths.append(f"{drafter.name} {len(tokens[1:]) / max(got.cycles, 1):.2f}")
    return f"{len(ids)} tokens, width {width}: {', '.join(lengths)} tokens a cycle"


@torch.no_grad()
def compare_expected(case: int, setting: str) -> str:
    """Generate case number `case` of `expected.json` and say what is equal.

    Another device's fp32 sums round otherwise, so a choice between two nearly equal
    logits may differ lawfully; drafters must agree with each other all the same.
    """
    params, wanted = model(setting), expected()[case]
    got, plain = (
        # one more than the file's 64: its counts go on until token 64 is verified
        fspec.generate(params, wanted["prompt_ids"], drafter, max_tokens=65)
        for drafter in (fspec.mtp(7), fspec.none())
    )
    require(got.token_ids == plain.token_ids, "mtp: other tokens than none")
    pairs = list(zip(got.token_ids, wanted["greedy_ids"], strict=False))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    counts = "equal" if got.accepted == wanted["mtp"]["accepted"] else "differ"
    return f"{same} of {len(wanted['greedy_ids'])} tokens equal, accepted {counts}"


def _one_at_a_time(params: fspec.TargetParams, ids: list[int]):
    one = ints(params, [1])
    capacity = len(ids) + NEW_TOKENS
    state = fspec.init_target(params, capacity=capacity, width=0)
    hidden = params.embed[:0]
    for part in ints(params, [ids]).split(100, 1):
        state, hidden, _ = fspec.extend(params, state, part)
    tokens = [int(fspec.head(params, hidden[:, -1]).argmax())]
    while len(tokens) < NEW_TOKENS and tokens[-1] not in params.config.eos_ids:
        verdict = fspec.verify(params, state, Block(ints(params, [tokens[-1:]]), one))
        state = fspec.commit(params, state, verdict, one)
        tokens.append(int(verdict.choice[0, 0]))
    return tokens, fspec.canonical(state, params)
