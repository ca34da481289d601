"""What attention is here: each row's softmax over the keys up to its position."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fspec.types import Batch


def attend(
    plan: Batch,
    layer: int,
    q: Float[Tensor, "r h k"],
    k: Float[Tensor, "r kv k"],
    v: Float[Tensor, "r kv k"],
    keys: Float[Tensor, "layer page row kv k"],
    values: Float[Tensor, "layer page row kv k"],
    table: Int[Tensor, "slot n"],
) -> Float[Tensor, "r h k"]:
    """Attend from every request's rows to its pages and to its rows before them.

    A request's rows stand at `i * t` of `q`, `k` and `v`. Key position p is in the
    page that `table` names for run `p // page size` below the committed length, and
    row `p - length` of the request from there on. Rows past a count are zeros.
    """
    t = len(q) // len(plan.slots)
    out = q.new_zeros(q.shape, dtype=torch.float32)
    size = keys.shape[2]
    for i, (slot, length, count, *_) in enumerate(zip(*plan, strict=True)):
        if count == 0:
            continue
        first = i * t
        both = []
        for arena, new in ((keys, k), (values, v)):
            old = [
                arena[layer, int(table[slot, p // size]), p % size]
                for p in range(length)
            ]
            both.append(torch.stack([*old, *new[first : first + count]]))
        rows = q[first : first + count]
        out[first : first + count] = attend_rows(rows, length, *both)
    return out


def attend_rows(
    q: Float[Tensor, "t h k"],
    start: int,
    keys: Float[Tensor, "n kv k"],
    values: Float[Tensor, "n kv v"],
) -> Float[Tensor, "t h v"]:
    """Attend from each row of `q` to keys at positions up to its own, in float64.

    Query head `h` reads key head `h // (h / kv)`; scores are scaled by `k ** -0.5`.
    Keys and values past a row's position are never read.
    """
    keys, values = keys.double(), values.double()
    out = q.new_zeros(*q.shape[:2], values.shape[2], dtype=torch.float32)
    group = q.shape[1] // keys.shape[1]
    for t, row in enumerate(q.double()):
        position = start + t
        for h, query in enumerate(row):
            seen = keys[: position + 1, h // group]
            weight = ((seen * query).sum(-1) * q.shape[2] ** -0.5).softmax(0)
            value = values[: position + 1, h // group]
            out[t, h] = (weight[:, None] * value).sum(0)
    return out
