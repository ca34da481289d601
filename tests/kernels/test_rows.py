"""Kernels that take rows one by one: against the reference, and row by row."""

import pytest
import torch

from fspec.kernels import gate, heads, norm, vocab
from fspec.kernels.gate import reference as gate_reference
from fspec.kernels.heads import reference as heads_reference
from fspec.kernels.norm import reference as norm_reference
from fspec.kernels.vocab import reference as vocab_reference
from fspec.types import Rotation
from tests.kernels.data import DTYPES, close, random

EPS = 1e-6
SHAPES = [(1, 1), (3, 7), (9, 33), (17, 64), (5, 130)]


def rows_alone(kernel, together, *rows: torch.Tensor) -> None:
    """Every row of a call has the bits that it has in a call of its own."""
    for i in range(len(rows[0])):
        alone = kernel(*(x[i : i + 1] for x in rows))
        for one, many in zip(alone, together, strict=True):
            assert torch.equal(one[0], many[i])


@pytest.mark.parametrize(("rows", "dim"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(rows: int, dim: int, dtype: torch.dtype):
    x, y = random(rows, dim).to(dtype), 3 * random(rows, dim, seed=1).to(dtype)
    gain = 1 + random(dim, seed=2)
    found = norm.rms_norm(x, gain, EPS)
    close(found, norm_reference.rms_norm(x, gain, EPS))
    rows_alone(lambda a: (norm.rms_norm(a, gain, EPS),), (found,), x)
    both = norm.add_norm(x, y, gain, EPS)
    for one, wanted in zip(both, norm_reference.add_norm(x, y, gain, EPS), strict=True):
        close(one, wanted)
    assert torch.equal(both[0], x + y)
    rows_alone(lambda a, b: norm.add_norm(a, b, gain, EPS), both, x, y)
    wide = x.float()
    close(norm.l2_norm(wide), norm_reference.l2_norm(wide))


def angles(rows: int, half: int) -> Rotation:
    angle = random(rows, 1, half, seed=5)
    return Rotation(angle.cos() * 1.25, angle.sin() * 1.25)


@pytest.mark.parametrize(("rows", "count", "dim"), [(1, 1, 8), (5, 3, 24), (9, 6, 16)])
@pytest.mark.parametrize("half", [1, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_rotate(rows: int, count: int, dim: int, half: int, dtype: torch.dtype):
    # columns past the heads are not read
    packed = torch.cat([random(rows, count * dim), torch.full((rows, 5), torch.nan)], 1)
    packed, gain = packed.to(dtype), 1 + random(count, dim, seed=1)
    by = angles(rows, half)
    found = heads.norm_rotate(packed, gain, by, EPS)
    close(found, heads_reference.norm_rotate(packed, gain, by, EPS))
    alone = packed[:, : count * dim].contiguous()
    assert torch.equal(heads.norm_rotate(alone, gain, by, EPS), found)
    rows_alone(
        lambda x, cos, sin: (heads.norm_rotate(x, gain, Rotation(cos, sin), EPS),),
        (found,),
        *(packed, *by),
    )


@pytest.mark.parametrize(("rows", "dim"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_gates(rows: int, dim: int, dtype: torch.dtype, scale: float):
    mixed, logit = random(rows, dim), (scale * random(rows, dim, seed=1)).to(dtype)
    found = gate.sigmoid_gate(mixed, logit)
    close(found, gate_reference.sigmoid_gate(mixed, logit))
    rows_alone(lambda x, z: (gate.sigmoid_gate(x, z),), (found,), mixed, logit)
    both = torch.cat([logit, random(rows, dim, seed=2).to(dtype)], 1)
    found = gate.swiglu(both)
    close(found, gate_reference.swiglu(both))
    rows_alone(lambda x: (gate.swiglu(x),), (found,), both)
    split, gain = random(rows, 3, dim), 1 + random(dim, seed=3)
    z = (scale * random(rows, 3 * dim, seed=4)).to(dtype)
    found = gate.norm_gate(split, z, gain, EPS)
    close(found, gate_reference.norm_gate(split, z, gain, EPS))
    rows_alone(lambda x, z: (gate.norm_gate(x, z, gain, EPS),), (found,), split, z)


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus"])
def test_activations(name: str):
    x = torch.linspace(-90, 90, 1001)
    found, wanted = (getattr(m, name) for m in (gate, gate_reference))
    torch.testing.assert_close(found(x), wanted(x.double()).float())


@pytest.mark.parametrize(
    ("rows", "dim", "words"), [(1, 3, 5), (9, 16, 61), (4, 40, 128)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_best_tokens(rows: int, dim: int, words: int, dtype: torch.dtype):
    # small whole numbers: exact sums, and many of them equal
    hidden, w = (
        random(*shape, seed=seed).round().to(dtype)
        for seed, shape in enumerate(((rows, dim), (dim, words)))
    )
    best = vocab.argmax(hidden, w)
    assert best.dtype == torch.int64
    assert torch.equal(best, vocab_reference.argmax(hidden, w))
    for count in (1, 3, min(16, words)):
        found = vocab.top(hidden, w, count)
        wanted = vocab_reference.top(hidden, w, count)
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)
        assert torch.equal(found[1][:, 0], best)
    rows_alone(lambda x: (vocab.argmax(x, w),), (best,), hidden)


def test_equal_logits_go_to_the_lowest_id():
    hidden, w = torch.ones(2, 4), torch.zeros(4, 50)
    w[0, 7:] = 1
    assert vocab.argmax(hidden, w).tolist() == [7, 7]
    assert vocab.top(hidden, w, 4)[1].tolist() == [[7, 8, 9, 10]] * 2
