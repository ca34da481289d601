"""The CPU product: the library's, always on groups of exactly eight rows."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor, Tensor], Tensor]

ROWS = 8
NARROW = 16  # below about ten outputs the library goes row by row, and by address


def product(x: Float[Tensor, "r i"], w: Float[Tensor, "o i"]) -> Float[Tensor, "r o"]:
    """Multiply each row of `x` by `wᵀ`; a row's bits do not depend on the others.

    The library picks its inner loop by the number of rows, and with it the order of
    the sum. Padding to groups of eight rows keeps one loop, for one row or for ten
    thousand. The price is up to eight times the work of a lone row.

    Args:
        x: `r` rows of any dtype that `w` has.
        w: a weight in checkpoint layout, `[out, in]`.
    """
    rows, outputs = x.shape[0], w.shape[0]
    if rows % ROWS:
        x = F.pad(x, (0, 0, 0, -rows % ROWS))
    if outputs < NARROW:
        w = F.pad(w, (0, 0, 0, NARROW - outputs))
    x = x.contiguous()
    if rows <= ROWS:
        y = F.linear(x, w)
    else:
        y = torch.cat([F.linear(group, w) for group in x.split(ROWS)])
    return y if y.shape == (rows, outputs) else y[:rows, :outputs]


def lone_product(
    x: Float[Tensor, "1 i"], w: Float[Tensor, "o i"]
) -> Float[Tensor, "1 o"]:
    """Multiply one row that always comes alone, such as a step of a draft chain.

    A matrix-vector product of its own bits, several times faster than a group of
    eight. Rows of the target never take it.
    """
    return F.linear(x, w)
