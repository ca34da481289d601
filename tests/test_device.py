"""Which kernels a device gets, and which devices are refused."""

import pytest
import torch
from torch.utils import _pytree as pytree

import fspec
from fspec.device import describe, find_device
from fspec.kernels import kernels_on
from fspec.kernels.on_cpu import VECTOR
from fspec.load import stored
from fspec.state.tree import copy
from tests.laws.systems import system


def test_a_cpu_takes_the_vector_forms():
    params = system(0, torch.float32).params
    assert params.kernels is kernels_on("cpu") is kernels_on(torch.device("cpu"))
    assert params.kernels is VECTOR
    assert copy(params).kernels is VECTOR
    assert fspec.equal(copy(params), params)
    assert find_device("cpu").type == describe(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["mps", "meta", "tpu", "cuda:x", ""])
def test_devices_that_fspec_does_not_run_on(name: str):
    with pytest.raises(fspec.UnsupportedError, match=f"device {name} was given"):
        fspec.load_target("no/such/folder", device=name)


def test_kernels_for_an_unknown_device_are_refused_by_name():
    for name in ("meta", "mps"):
        with pytest.raises(fspec.UnsupportedError, match=name):
            kernels_on(name)


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_devices_that_are_not_here(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(getattr(torch, name), "is_available", lambda: False)
    # before the folder is looked at
    with pytest.raises(fspec.UnsupportedError, match=f"sees 0 {name} devices"):
        fspec.load_target("no/such/folder", device=name)
    with pytest.raises(fspec.UnsupportedError, match=f"sees 0 {name} devices"):
        find_device(f"{name}:1")


def test_weights_lie_as_their_device_reads_them():
    rows = torch.randn(5, 3)
    assert stored(rows).is_contiguous()
    far = stored(rows.to("meta"))  # as on any device but the CPU
    assert far.shape == (3, 5)
    assert far.t().is_contiguous()


@pytest.mark.parametrize("page_size", [16, 64])
def test_every_tensor_names_its_device(page_size: int):
    # where a tensor is made without a device, it comes to lie on this one, and fails
    params, streams = system(0, torch.float32)
    prompt = (streams[0][:9] * 4)[:30]
    for drafter in (fspec.none(), fspec.lookup(3), fspec.mtp(3)):
        wanted = fspec.generate(params, prompt, drafter, max_tokens=20, stop_ids=(1,))
        with torch.device("meta"):
            found = fspec.generate(
                params, prompt, drafter, max_tokens=20, stop_ids=(1,)
            )
            branched(params, drafter, prompt, page_size)
        assert found.token_ids == wanted.token_ids
        assert all(leaf.device.type == "cpu" for leaf in tensors(found.state))


def branched(params, drafter, prompt: list[int], page_size: int) -> None:
    """Prefill, branch, reserve and release, on the target's device."""
    state = fspec.init_decode(
        params, drafter, batch=2, capacity=40, max_tokens=4, page_size=page_size
    )
    device = params.embed.device
    tokens = torch.tensor([prompt, prompt], device=device)
    counts = torch.tensor([30, 17], device=device)
    state, _ = fspec.compose(drafter).prefill(params, state, tokens, counts)
    pages = state.target.pages.table.shape[1]
    pool = fspec.PagePool(torch.ones(2 * pages, dtype=torch.int64, device="cpu"))
    states = state.target, state.drafter
    pool, states = fspec.release(pool, states, 1)
    pool, states = fspec.branch(pool, states, 0, 1)
    pool, states = fspec.reserve(pool, states, 1, 40)
    assert pool.references.device.type == "cpu"
    fspec.canonical(states, params)


def tensors(tree) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def test_the_choice_is_the_same_without_logits():
    params, streams = system(0, torch.bfloat16)
    state = fspec.init_target(params, batch=2, capacity=40, width=7)
    tokens = torch.tensor([streams[0][:8], streams[1][:8]])
    block = fspec.Block(tokens, torch.tensor([8, 5]))
    full = fspec.verify(params, state, block)
    bare = fspec.verify(params, state, block, logits=False)
    assert bare.logits is None
    assert fspec.equal(bare, full._replace(logits=None))
