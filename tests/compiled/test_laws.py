"""The laws, on random small targets, and what each must reject."""

from dataclasses import replace

import pytest
import torch

from tests.laws import ALL, base, row
from tests.laws.settings import CPU, FULL, LINEAR, SETTINGS, Setting, layers
from tests.laws.systems import system

EXAMPLES = 60
WRONG = [
    pytest.param(law, wrong, setting, id=f"{law.name}-{wrong.title}-{setting}")
    for law in ALL
    for wrong in law.wrong
    for setting in CPU
    if setting in wrong.settings
]
# the GPU's settings, as small as a CPU can run them
SMALL = {
    "device": "cpu",
    "variants": (layers(LINEAR, FULL), layers(FULL, LINEAR, LINEAR)),
    "longest": 110,
    "long": 90,
    "prompts": (1, 17),
    "pages": (16, 48),
    "large": False,
}
REHEARSED = [replace(SETTINGS[name], **SMALL) for name in ("cuda-bf16", "cuda-w4a16")]


@pytest.mark.parametrize("setting", CPU)
@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_law(law: base.Law, setting: str):
    base.run(law, setting, EXAMPLES)


@pytest.mark.parametrize(("law", "wrong", "setting"), WRONG)
def test_law_rejects(law: base.Law, wrong: base.Wrong, setting: str):
    assert base.reject(law, wrong, setting)


@pytest.mark.parametrize("setting", REHEARSED, ids=lambda setting: setting.name)
@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_law_as_on_a_gpu(law: base.Law, setting: Setting):
    for variant in range(len(setting.variants)):
        system(variant, setting)
    # a tensor made without a device comes to lie on this one, and the law fails
    with torch.device("meta"):
        base.run(law, setting, 4)


def test_chunk_edges_that_move_are_rejected():
    wrong = next(w for w in row.LAW.wrong if w.title == "chunk edges that move")
    # bf16 hides it in a target this small
    assert base.reject(row.LAW, wrong, replace(REHEARSED[0], dtype=torch.float32))


def test_weights_drawn_on_a_device_are_those_of_their_seed():
    setting = replace(REHEARSED[0], large=True)
    first, again = (system(0, s).params for s in (setting, replace(setting)))
    assert torch.equal(first.embed, again.embed)
    assert first.embed.dtype == torch.bfloat16
