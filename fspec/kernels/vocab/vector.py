"""The head's best tokens on a CPU: all logits, then a search."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fspec.kernels.packed import Weight
from fspec.kernels.product.vector import product


def argmax(hidden: Float[Tensor, "r d"], w: Weight) -> Int[Tensor, " r"]:
    """Find the id of each row's greatest logit, the lowest of equal ones.

    Logits are of `hidden`'s dtype, and compared as such.
    """
    # the library returns the first of equal maxima
    return product(hidden, w).argmax(-1)


def top(
    hidden: Float[Tensor, "r d"], w: Weight, count: int
) -> tuple[Float[Tensor, "r n"], Int[Tensor, "r n"]]:
    """Find the `count` greatest logits of each row, in descending order.

    Returns:
        Values and ids; of equal values the lower id comes first.
    """
    # a stable sort keeps the order of equal values, which topk does not promise
    logits = product(hidden, w)
    values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    return values[:, :count], ids[:, :count]
