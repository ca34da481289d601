"""fspec under PyTorch's transforms: compiled, differentiated, and where it refuses."""

from collections.abc import Iterator

import pytest
import torch

import fspec
from fspec.kernels.delta import scan
from fspec.kernels.norm import rms_norm
from fspec.kernels.packed import Weight
from fspec.kernels.product import product
from fspec.layers.attention import AttentionParams
from fspec.layers.mlp import mlp
from fspec.layers.mtp import mtp_chain
from fspec.types import Block
from tests.laws import base, row
from tests.laws.systems import system

FP32 = torch.float32


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dense(weight: Weight) -> torch.Tensor:
    assert isinstance(weight, torch.Tensor)
    return weight


def test_kernels_and_layers_compile_whole():
    params = system(0, FP32).params
    x = random(8, params.config.hidden)
    layer = params.layers[0]
    rows = random(20, 4, 8), random(20, 4, 8, seed=1), random(20, 4, 16, seed=2)
    calls = [
        (product, (x, dense(layer.mlp.down).t().contiguous())),
        (mlp, (params.kernels, layer.mlp, x)),
        (rms_norm, (x, layer.mlp_gain, 1e-6)),
        (
            scan,
            (random(4, 8, 16), *rows, random(20, 4) ** 2, -(random(20, 4) ** 2), 16),
        ),
    ]
    for function, arguments in calls:
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        assert fspec.equal(compiled(*arguments), function(*arguments))


def test_accept_compiles_whole():
    block = Block(torch.tensor([[1, 5, 6], [1, 7, 7]]), torch.tensor([3, 2]))
    choice = torch.tensor([[5, 6, 9], [8, 7, 7]])
    nothing = torch.zeros(0)
    rest = (nothing, nothing, nothing, nothing, nothing)
    verdict = fspec.Verdict(block, nothing, choice, *rest, [], nothing)
    sampling = fspec.greedy(2, width=2, max_tokens=9, room=9, stop_ids=(6,))
    compiled = torch.compile(fspec.accept, fullgraph=True, backend="eager")
    assert fspec.equal(compiled(verdict, sampling), fspec.accept(verdict, sampling))


def test_gradients_go_through_the_mtp_chain():
    params = system(0, FP32).params
    config = params.config
    keys = random(config.kv_heads, 5, config.head_dim)
    hidden, boundary = random(1, config.hidden, seed=1), torch.tensor([3])
    target = torch.tensor([4, 5, 6])

    def loss(mtp) -> torch.Tensor:
        chain = mtp_chain(params, mtp, keys, keys, hidden, boundary, 3)
        return torch.nn.functional.cross_entropy(chain.logits, target)

    mtp = params.mtp
    assert mtp is not None
    gradient = torch.func.grad(loss)(mtp)
    mixer = gradient.layer.mixer
    assert isinstance(mixer, AttentionParams)
    for leaf in (gradient.fc, gradient.gain, mixer.in_proj, gradient.layer.mlp.down):
        leaf = dense(leaf)
        assert bool(leaf.isfinite().all())
        assert float(leaf.abs().max()) > 0
    # one entry against a difference quotient; its own fp32 rounding is about 1 %
    fc = dense(mtp.fc)
    step = torch.zeros_like(fc)
    step[2, 3] = 1e-2
    up, down = (loss(mtp._replace(fc=fc + s)) for s in (step, -step))
    torch.testing.assert_close(
        dense(gradient.fc)[2, 3], (up - down) / 2e-2, rtol=2e-2, atol=1e-4
    )


def test_vmap_is_refused():
    params, streams = system(0, FP32)
    state = fspec.init_target(params, capacity=8, width=1)
    tokens = torch.tensor(streams[0][:2])[:, None, None]

    def verify(token: torch.Tensor) -> torch.Tensor:
        return fspec.verify(params, state, Block(token, token[0] * 0 + 1)).choice

    with pytest.raises(fspec.UnsupportedError, match="vmap"):
        torch.vmap(verify)(tokens)


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_row_law_with_two_threads():
    row.reference.cache_clear()
    base.run(row.LAW, "fp32", 10)
    row.reference.cache_clear()
