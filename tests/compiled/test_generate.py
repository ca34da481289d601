"""`generate` as users call it, without the hook that would check types first."""

from typing import Any

import pytest
import torch

import fspec
from tests.laws.systems import system


@pytest.fixture(scope="module")
def toy():
    return system(0, torch.float32)


def test_generate_names_what_is_wrong(toy):
    # BR-122: ids at and past both ends of the vocabulary, and what is no integer
    vocab = toy.params.config.vocab
    call = {"drafter": fspec.none(), "max_tokens": 2}
    wrong: list[Any] = [-1, vocab, 2**31, 2**63, 1.5, True, [1]]
    for bad in wrong:
        with pytest.raises(fspec.RequestError, match="ids are integers"):
            fspec.generate(toy.params, [1, bad], **call)
    assert fspec.generate(toy.params, [vocab - 1], **call).token_ids
    with pytest.raises(fspec.RequestError, match="empty"):
        fspec.generate(toy.params, [], **call)
    with pytest.raises(fspec.RequestError, match="context"):
        fspec.generate(toy.params, [1] * 511, **call)
    assert fspec.generate(toy.params, [1] * 510, **call).token_ids
    with pytest.raises(fspec.RequestError, match="stop id"):
        fspec.generate(toy.params, [1], stop_ids=(vocab,), **call)
    with pytest.raises(fspec.RequestError, match="1 or more"):
        fspec.generate(toy.params, [1], fspec.none(), max_tokens=0)
