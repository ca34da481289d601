"""A target of packed weights: the same laws, and what it stands for."""

import pytest
import torch

import fspec
from fspec.kernels.packed import Packed, dequantize
from fspec.load import pack_target
from fspec.types import Block
from tests.laws.systems import VARIANTS, system


def unpacked(params: fspec.TargetParams) -> fspec.TargetParams:
    """The same target with every packed weight dense."""

    def dense(weight):
        return dequantize(weight) if isinstance(weight, Packed) else weight

    layers = (
        layer._replace(
            mixer=type(layer.mixer)(*map(dense, layer.mixer)),
            mlp=type(layer.mlp)(*map(dense, layer.mlp)),
        )
        for layer in params.layers
    )
    return params._replace(layers=tuple(layers))


@pytest.mark.parametrize("variant", range(0, len(VARIANTS), 2))
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_target(variant: int, group: int, symmetric: bool, dtype: torch.dtype):
    plain, streams = system(variant, dtype)
    params = pack_target(plain, group, symmetric)
    weights = [w for layer in params.layers for w in (*layer.mixer, *layer.mlp)]
    assert sum(isinstance(w, Packed) for w in weights) == 4 * len(params.layers)
    prompt = streams[0][:20]
    none, fast, dense = (
        fspec.generate(model, prompt, drafter, max_tokens=12, stop_ids=())
        for model, drafter in (
            (params, fspec.none()),
            (params, fspec.mtp(5)),
            (unpacked(params), fspec.mtp(5)),
        )
    )
    assert none.token_ids == fast.token_ids == dense.token_ids
    states = [fspec.canonical(x.state.target, params) for x in (none, fast, dense)]
    assert fspec.equal(states[0], states[1])
    assert fspec.equal(states[1], states[2])


def test_rows_of_a_packed_target_are_equal_alone():
    plain, streams = system(0, torch.float32)
    params = pack_target(plain, 32, False)
    state = fspec.init_target(params, capacity=60, width=7)
    state, _, _ = fspec.extend(params, state, torch.tensor([streams[0][:21]]))
    tokens, one = torch.tensor([streams[0][21:29]]), torch.tensor([1])
    whole = fspec.verify(params, state, Block(tokens, torch.tensor([8])))
    for row in range(8):
        single = Block(tokens[:, row : row + 1], one)
        verdict = fspec.verify(params, state, single)
        assert verdict.logits is not None
        assert whole.logits is not None
        assert fspec.equal(verdict.logits[0, 0], whole.logits[0, row])
        state = fspec.commit(params, state, verdict, one)
