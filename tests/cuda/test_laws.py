"""The laws on a CUDA device: cuts of the 27B model, small odd targets, the trained one.

`python -m tests.laws --device cuda` runs more of each and prints a summary.
"""

import pytest
import torch

from tests.laws import ALL, base, trio
from tests.laws.settings import CUDA

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXAMPLES = 15
WRONG = [
    pytest.param(law, wrong, setting, id=f"{law.name}-{wrong.title}-{setting}")
    for setting in CUDA
    for law in ALL
    for wrong in law.wrong
    if setting in wrong.settings
]


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
@pytest.mark.parametrize("setting", CUDA)
def test_law(law: base.Law, setting: str):
    base.run(law, setting, EXAMPLES)


@pytest.mark.parametrize(("law", "wrong", "setting"), WRONG)
def test_law_rejects(law: base.Law, wrong: base.Wrong, setting: str):
    assert base.reject(law, wrong, setting)


@pytest.mark.parametrize("setting", trio.NAMES["cuda"])
@pytest.mark.parametrize("prompt", range(0, 29, 4))
def test_trained_model(prompt: int, setting: str):
    trio.check(prompt, 4, setting, seed=0)


@pytest.mark.parametrize("case", range(len(trio.expected())))
def test_expected_tokens_and_acceptance(case: int):
    found = trio.compare_expected(case, "cuda-fp32")
    assert found == "64 of 64 tokens equal, accepted equal"
