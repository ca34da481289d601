"""The Triton kernels in Triton's interpreter, on small odd shapes: no GPU needed.

A session of its own, since Triton decides at import whether it compiles or interprets:
`TRITON_INTERPRET=1 python -m pytest -o addopts= tests/interpreted`.
"""

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 from the start", allow_module_level=True)

from fspec.errors import ShapeError, UnsupportedError
from fspec.kernels.on_gpu import TRITON
from fspec.types import Batch
from tests.interpreted import bf16
from tests.kernels import triton_cases as cases

bf16.mend()


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def draw(request: pytest.FixtureRequest):
    return cases.Draw("cpu", request.param)


# numpy adds in an order that depends on the tile: rows of one tile alone are compared
@pytest.mark.parametrize(
    ("inner", "outer", "rows"), [(3, 5, [1, 2, 7]), (200, 100, [1, 8])]
)
def test_product(draw, inner, outer, rows):
    cases.product(TRITON, draw, inner, outer, rows)


@pytest.mark.parametrize(("group", "symmetric"), [(32, False), (128, True)])
def test_packed(draw, group, symmetric):
    cases.packed(TRITON, draw, 200, 100, group, symmetric, [1, 3, 8])


def test_norms(draw):
    cases.norms(TRITON, draw, 3, 7)


def test_heads(draw):
    cases.heads(TRITON, draw, 3, 4, 24, 3)


def test_gates(draw):
    cases.gates(TRITON, draw, 3, 3, 12)


@pytest.mark.parametrize("outer", [5, 300])
def test_vocab(draw, outer):
    cases.vocab(TRITON, draw, 64, outer, 3)


@pytest.mark.parametrize(
    ("lengths", "counts", "size", "kv", "group", "dim"),
    [([0, 5, 70], [3, 4, 0], 16, 2, 3, 24), ([63, 130], [2, 8], 64, 1, 4, 64)],
)
def test_attention(draw, lengths, counts, size, kv, group, dim):
    cases.attention(TRITON, draw, lengths, counts, size, kv, group, dim)


@pytest.mark.parametrize(
    ("lengths", "counts", "starts", "heads", "dims"),
    [
        ([0, 5], [3, 1], [0, 0], (1, 1), (8, 12)),
        ([20, 47], [3, 6], [16, 32], (2, 6), (32, 32)),
        ([15, 16, 17], [1, 0, 3], [0, 0, 16], (1, 2), (16, 24)),
    ],
)
def test_delta(draw, lengths, counts, starts, heads, dims):
    cases.delta(TRITON, draw, lengths, counts, starts, heads, dims)


def test_small_pages_are_refused_by_name():
    arena = torch.zeros(1, 2, 8, 1, 16)
    with pytest.raises(ShapeError, match="pages of 8 rows"):
        TRITON.plan(Batch([0], [0], [1], [0], [0]), 1, 1, arena, arena)


def test_too_many_query_heads_are_refused_by_name():
    arena = torch.zeros(1, 2, 16, 1, 16)
    with pytest.raises(UnsupportedError, match="query heads"):
        TRITON.plan(Batch([0], [0], [1], [0], [0]), 1, 65, arena, arena)
