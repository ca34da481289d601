"""What the best tokens are: a search through each row's logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fspec.kernels.packed import Weight
from fspec.kernels.product.reference import product


def argmax(hidden: Float[Tensor, "r d"], w: Weight) -> Int[Tensor, " r"]:
    """Id of the greatest logit of each row, the lowest of equal ones."""
    return top(hidden, w, 1)[1][:, 0]


def top(
    hidden: Float[Tensor, "r d"], w: Weight, count: int
) -> tuple[Float[Tensor, "r n"], Int[Tensor, "r n"]]:
    """The `count` greatest logits of each row and their ids, lower ids first."""
    logits = product(hidden, w)
    rows = [
        sorted(enumerate(row), key=lambda each: (-each[1], each[0]))[:count]
        for row in logits.tolist()
    ]
    ids = torch.tensor([[at for at, _ in row] for row in rows], device=logits.device)
    return logits.gather(1, ids), ids
