"""The head's best tokens, without logits and from logits.

Small whole numbers make every product exact: equal logits are then truly equal, and
the lower id must win.
"""

import torch
from torch import Tensor

from fspec.kernels.vocab import reference, triton
from tests.xpu._data import inside, random
from tests.xpu._shapes import MODELS, Sizes
from tools.xpu.memory import poisoned
from tools.xpu.spec import Case, Native, Run

COUNTS = (1, 8, 16, 32)
TOP = 16


def _native(sizes: Sizes) -> Native:
    w = torch.empty(sizes.vocab, sizes.hidden, dtype=sizes.dtype).t()

    def launch() -> None:
        for rows in COUNTS:
            hidden = torch.zeros(rows, sizes.hidden, dtype=sizes.dtype)
            triton.argmax(hidden, w)
            triton.top(hidden, w, TOP)
        triton.top_logits(torch.empty(7, sizes.vocab, dtype=sizes.dtype), TOP)

    return Native(f"best tokens, {sizes.name}", launch)


def _run(outer: int, dtype: torch.dtype) -> Run:
    rows, inner, count = 9, 64, 4
    hidden = random(rows, inner).round().clamp(-2, 2).to(dtype)
    w = random(outer, inner, seed=1).round().clamp(-1, 1).to(dtype)

    def call(first: int, last: int) -> tuple[Tensor, ...]:
        some, weight = inside(hidden[first:last], 8), poisoned(w).t()
        logits = poisoned(hidden[first:last] @ w.t())
        best = triton.argmax(some, weight)
        found, again = triton.top(some, weight, count), triton.top_logits(logits, count)
        return best, *found, *again

    def wanted() -> tuple[Tensor, ...]:
        found = reference.top(hidden, w.t(), count)
        return reference.argmax(hidden, w.t()), *found, *found

    return Run(
        f"best tokens of {outer}, {dtype}",
        rows,
        call,
        wanted,
        ((0, 1), (2, 9)),
        rtol=0.0,
        atol=0.0,
    )


CASES: list[Case] = [
    *map(_native, MODELS),
    _run(300, torch.bfloat16),
    _run(100, torch.float32),
]
