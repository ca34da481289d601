"""The Triton kernels on a CUDA device, over odd shapes and the 27B model's."""

import pytest
import torch

from tests.kernels import triton_cases as cases

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture
def ops():
    from fspec.kernels import kernels_on

    return kernels_on("cuda")


@pytest.fixture(params=DTYPES, ids=["bf16", "fp32"])
def draw(request: pytest.FixtureRequest):
    return cases.Draw("cuda", request.param)


@pytest.mark.parametrize(
    ("inner", "outer", "rows"),
    [
        (3, 5, [1, 2, 9]),
        (41, 7, [1, 17]),
        (200, 100, [1, 16, 33, 130]),
        (256, 1537, [1, 8, 65]),
        (5120, 2048, [1, 5, 8, 16, 32, 64, 128, 200]),
        (6144, 5120, [1, 8, 16, 17, 128]),
    ],
)
def test_product(ops, draw, inner, outer, rows):
    cases.product(ops, draw, inner, outer, rows)


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("inner", "outer", "rows"),
    [
        (40, 7, [1, 9]),
        (1100, 1, [1, 3]),
        (200, 100, [1, 16, 33, 130]),
        (5120, 2048, [1, 8, 16, 17, 128]),
    ],
)
def test_packed(ops, draw, inner, outer, group, symmetric, rows):
    cases.packed(ops, draw, inner, outer, group, symmetric, rows)


@pytest.mark.parametrize(("rows", "dim"), [(3, 7), (5, 256), (8, 5120)])
def test_norms(ops, draw, rows, dim):
    cases.norms(ops, draw, rows, dim)


@pytest.mark.parametrize(
    ("rows", "count", "dim", "half"), [(3, 4, 24, 3), (2, 6, 64, 8), (8, 28, 256, 32)]
)
def test_heads(ops, draw, rows, count, dim, half):
    cases.heads(ops, draw, rows, count, dim, half)


@pytest.mark.parametrize(("rows", "count", "dim"), [(3, 3, 12), (8, 48, 128)])
def test_gates(ops, draw, rows, count, dim):
    cases.gates(ops, draw, rows, count, dim)


@pytest.mark.parametrize(
    ("inner", "outer", "rows"),
    [(16, 5, 2), (16, 61, 3), (64, 5000, 7), (256, 1 << 17, 17)],
)
def test_vocab(ops, draw, inner, outer, rows):
    cases.vocab(ops, draw, inner, outer, rows)


@pytest.mark.parametrize(
    ("lengths", "counts", "size", "kv", "group", "dim"),
    [
        ([0, 5, 70], [3, 7, 0], 16, 2, 3, 24),
        ([63, 64, 130], [2, 8, 17], 64, 1, 4, 64),
        ([510, 600, 1023], [8, 8, 8], 64, 4, 6, 256),
        ([500], [40], 100, 4, 6, 256),
        ([16380], [8], 64, 2, 6, 256),
    ],
)
def test_attention(ops, draw, lengths, counts, size, kv, group, dim):
    cases.attention(ops, draw, lengths, counts, size, kv, group, dim)


@pytest.mark.parametrize(
    ("lengths", "counts", "starts", "heads", "dims"),
    [
        ([0, 5], [3, 1], [0, 0], (1, 1), (8, 12)),
        ([20, 16, 47], [8, 20, 0], [16, 0, 32], (2, 6), (32, 32)),
        ([40, 60], [8, 8], [32, 32], (16, 48), (128, 128)),
        ([0], [50], [0], (16, 48), (128, 128)),
        ([15, 16, 17], [1, 0, 3], [0, 0, 16], (1, 2), (16, 24)),
    ],
)
def test_delta(ops, draw, lengths, counts, starts, heads, dims):
    cases.delta(ops, draw, lengths, counts, starts, heads, dims)
