"""The trained model end to end, as users run it: no hook, real prompts."""

import pytest

import fspec
from tests.laws import trio


@pytest.mark.parametrize("prompt", range(0, 29, 4))
def test_generate_law(prompt: int):
    trio.check(prompt, 4, "fp32", seed=0)


@pytest.mark.parametrize("case", trio.expected(), ids=lambda case: f"id{case['id']}")
def test_expected_tokens_and_acceptance(case: dict):
    params = trio.model("fp32")
    # one more than the file's 64: its counts go on until token 64 has been verified
    got = fspec.generate(params, case["prompt_ids"], fspec.mtp(7), max_tokens=65)
    assert got.token_ids[:64] == case["greedy_ids"]
    assert got.accepted == case["mtp"]["accepted"]
    plain = fspec.generate(params, case["prompt_ids"], fspec.none(), max_tokens=65)
    assert plain.token_ids == got.token_ids
