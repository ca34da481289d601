"""What attention is here: each row's softmax over the keys up to its position."""

import torch
from jaxtyping import Float
from torch import Tensor


def attend(
    q: Float[Tensor, "t h k"],
    start: int,
    keys: Float[Tensor, "n 64 kv k"],
    values: Float[Tensor, "n 64 kv v"],
) -> Float[Tensor, "t h v"]:
    """Attend from each row of `q` to keys at positions up to its own, in float64.

    Query head `h` reads key head `h // (h / kv)`; scores are scaled by `k ** -0.5`.
    Keys and values past a row's position are never read.
    """
    keys, values = keys.flatten(0, 1).double(), values.flatten(0, 1).double()
    group = q.shape[1] // keys.shape[1]
    rows = []
    for position, row in enumerate(q.double(), start):
        heads = []
        for h, query in enumerate(row):
            seen = keys[: position + 1, h // group]
            weight = ((seen * query).sum(-1) * q.shape[2] ** -0.5).softmax(0)
            value = values[: position + 1, h // group]
            heads.append((weight[:, None] * value).sum(0))
        rows.append(torch.stack(heads))
    return torch.stack(rows).float()
