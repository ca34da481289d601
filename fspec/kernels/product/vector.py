"""The CPU product: the library's, always on groups of exactly eight rows."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fspec.kernels.packed import Packed, Weight, dequantize

ROWS = 8
PARTS = 4
NARROW = 16  # below about ten outputs the library goes row by row, and by address


def product(x: Float[Tensor, "r i"], w: Weight) -> Float[Tensor, "r o"]:
    """Multiply rows by a weight; a row's bits do not depend on the other rows.

    The library picks its inner loop by the number of rows, and with it the order of
    the sum. Padding to groups of eight rows keeps one loop, for one row or for ten
    thousand; the price is up to eight times the work of a lone row. Its loop adds the
    `i` terms one after another, so the sum is cut into four parts: half the rounding
    error at no cost. Sums are fp32, rounded once.

    Args:
        x: `r` rows of any dtype that `w` has.
        w: the weight, `[in, out]`; columns may be a slice of a wider one. A packed one
            is multiplied as what it stands for.
    """
    if isinstance(w, Packed):
        w = dequantize(w)
    if x.dtype != torch.float32:
        return product(x.float(), w.float()).to(x.dtype)
    rows, inner = x.shape
    outputs = w.shape[1]
    if rows % ROWS:
        x = F.pad(x, (0, 0, 0, -rows % ROWS))
    if outputs < NARROW:
        w = F.pad(w, (0, NARROW - outputs))
    parts = math.gcd(inner, PARTS)
    terms = w.view(parts, inner // parts, -1)
    if rows <= ROWS:
        y = _group(x, terms)
    else:
        y = torch.cat([_group(group, terms) for group in x.split(ROWS)])
    return y if y.shape == (rows, outputs) else y[:rows, :outputs]


def _group(
    x: Float[Tensor, "8 i"], terms: Float[Tensor, "p j o"]
) -> Float[Tensor, "8 o"]:
    parts, each, _ = terms.shape
    return torch.bmm(x.reshape(ROWS, parts, each).transpose(0, 1), terms).sum(0)


def lone_product(x: Float[Tensor, "1 i"], w: Weight) -> Float[Tensor, "1 o"]:
    """Multiply one row that always comes alone, such as a step of a draft chain.

    A vector-matrix product of its own bits, several times faster than a group of
    eight. Rows of the target never take it.
    """
    if isinstance(w, Packed):
        w = dequantize(w)
    if x.dtype != torch.float32:
        return (x.float() @ w.float()).to(x.dtype)
    return x @ w
