"""Weights of four bits: how they are stored, and what they stand for."""

import pytest
import torch
from torch.utils import _pytree as pytree

from fspec.errors import ShapeError
from fspec.kernels import packed, product
from fspec.kernels.packed import reference
from fspec.kernels.product import reference as product_reference
from fspec.state.tree import copy, equal, map_tensors
from tests.kernels.data import DTYPES, close, random

SHAPES = [(1, 1), (32, 64), (40, 70), (128, 5), (160, 65), (256, 128)]  # inner, outer


def parts(inner: int, outer: int, group: int, symmetric: bool, dtype: torch.dtype):
    """Random codes, scales and zeros of a weight."""
    source = torch.Generator().manual_seed(inner + outer)
    groups = -(-inner // group)
    codes = torch.randint(16, (outer, inner), generator=source)
    zero = torch.randint(16, (outer, groups), generator=source)
    scale = (random(outer, groups).abs() / 8 + 0.01).to(dtype)
    return codes, scale, None if symmetric else zero


def dense(codes, scale, zero, group: int) -> torch.Tensor:
    each = [
        x.repeat_interleave(group, 1)[:, : codes.shape[1]]
        for x in (scale, torch.full_like(scale, 8).long() if zero is None else zero)
    ]
    return ((codes - each[1]).to(scale.dtype) * each[0]).t()


@pytest.mark.parametrize(("inner", "outer"), SHAPES)
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_weight_is_its_codes(
    inner: int, outer: int, group: int, symmetric: bool, dtype: torch.dtype
):
    made = parts(inner, outer, group, symmetric, dtype)
    weight = packed.pack(*made, group)
    assert weight.shape == (inner, outer)
    assert weight.words.shape == (-(-outer // 64), -(-inner // 128), 64, 16)
    assert weight.words.is_contiguous()
    rows, columns = weight.scale.shape
    assert (rows * group, columns) == (-(-inner // 128) * 128, -(-outer // 64) * 64)
    assert not weight.scale[-(-inner // group) :].any()
    assert not weight.scale[:, outer:].any()
    found = packed.dequantize(weight)
    assert found.t().is_contiguous()
    assert torch.equal(found, dense(*made, group))
    if inner * outer < 3000:
        assert torch.equal(found, reference.dequantize(weight))


def test_where_a_code_lies():
    # block g, row n, word j, bits 4i…4i+3: input 128 g + 16 i + j of output 64 b + n
    codes = torch.zeros(70, 256, dtype=torch.int64)
    codes[64 + 3, 128 + 16 * 7 + 5] = 9
    weight = packed.pack(codes, torch.ones(70, 2), None, 128)
    assert weight.words.nonzero().tolist() == [[1, 1, 3, 5]]
    assert int(weight.words[1, 1, 3, 5]) & 0xFFFFFFFF == 9 << 28


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize_rounds_to_the_nearest_code(
    group: int, symmetric: bool, dtype: torch.dtype
):
    weight = (random(200, 70) + 0.3).to(dtype)
    weight[:, 5] = 0
    made = packed.quantize(weight, group, symmetric)
    assert (made.zero is None) == symmetric
    step = made.scale.float().repeat_interleave(group, 0)[:200, :70]
    off = (packed.dequantize(made).float() - weight.float()).abs()
    # half a step, and what bf16 scales and products round
    slack = 1e-5 if dtype == torch.float32 else 0.07
    assert bool((off <= (0.5 + slack) * step).all())
    again = packed.quantize(packed.dequantize(made), group, symmetric)
    assert symmetric or dtype != torch.float32 or equal(again.words, made.words)


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (40, 70), (160, 65)])
def test_product(
    inner: int, outer: int, group: int, symmetric: bool, dtype: torch.dtype
):
    weight = packed.quantize(random(inner, outer, seed=1).to(dtype), group, symmetric)
    x = random(11, inner).to(dtype)
    found = product.product(x, weight)
    close(found, product_reference.product(x, weight))
    assert torch.equal(found, product.product(x, packed.dequantize(weight)))
    for row in range(len(x)):
        one = x[row : row + 1]
        assert torch.equal(product.product(one, weight)[0], found[row])
        close(product.lone_product(one, weight), product_reference.product(one, weight))


def test_a_packed_weight_is_a_pytree():
    weight = packed.quantize(random(40, 70), 32, True)
    leaves, spec = pytree.tree_flatten([weight])
    tensors = [leaf for leaf in leaves if leaf is not None]
    assert [leaf.dtype for leaf in tensors] == [torch.int32, torch.float32]
    twice = pytree.tree_unflatten(leaves, spec)[0]
    assert twice.shape == (40, 70)
    assert equal(copy(weight), weight)
    assert not equal(packed.quantize(random(40, 70), 128, True), weight)
    short = map_tensors(lambda x: x[:1], weight)
    assert len(short.words) == len(short.scale) == 1


def test_columns_are_cut_between_tiles():
    weight = packed.quantize(random(40, 200, seed=2), 32, False)
    whole = packed.dequantize(weight)
    for first, end in ((0, 64), (64, 192), (128, 200)):
        part = packed.columns(weight, first, end)
        assert part.shape == (40, end - first)
        assert isinstance(part, packed.Packed)
        assert torch.equal(packed.dequantize(part), whole[:, first:end])
        assert equal(packed.columns(whole, first, end), whole[:, first:end])
    for first, end in ((1, 64), (0, 63)):
        with pytest.raises(ShapeError, match="multiples of 64"):
            packed.columns(weight, first, end)


def test_what_is_refused():
    codes, scale = torch.zeros(4, 64, dtype=torch.int64), torch.ones(4, 2)
    for make in (
        lambda: packed.pack(codes, scale, None, 64),
        lambda: packed.quantize(random(64, 4), 16, True),
    ):
        with pytest.raises(ShapeError, match="32 and 128"):
            make()
    with pytest.raises(ShapeError, match="need 4 × 1"):
        packed.pack(codes, scale, None, 128)
    with pytest.raises(ShapeError, match="need 4 × 2"):
        packed.pack(codes, scale[:, :1], codes[:, :1], 32)
