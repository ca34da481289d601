"""What the check must reject, beside the right twin that it must accept.

`reject` holds words of the failure: a control that fails for another reason, such as
a broken harness, has not been rejected.
"""

# Triton's types take no number for a kernel's constant
# pyright: reportArgumentType=false

import torch
from torch import Tensor

from tests.xpu import _samples as samples
from tests.xpu._data import random
from tools.xpu.memory import poisoned
from tools.xpu.spec import Case, Native, Run

BF16 = torch.bfloat16
INTS = torch.empty(64, dtype=torch.int32)
ROWS, INNER, OUTER = 16, 256, 32

X, W = random(ROWS, INNER), random(INNER, OUTER, seed=1)
PRODUCT = (X.double() @ W.double()).float()
WIDE, SCALE = random(ROWS, 40), random(40, seed=1)
SCALED = WIDE * torch.rsqrt((WIDE * WIDE).mean(1, keepdim=True) + 1e-6) * SCALE


def _native_product(rows: int, tile: tuple[int, int, int]) -> Tensor:
    x, w = torch.empty(rows, 4096, dtype=BF16), torch.empty(4096, 4096, dtype=BF16)
    return samples.product(x, w, tile)


def _native_scale(inner: int) -> Tensor:
    return samples.scale(torch.empty(1, inner), torch.empty(inner), block=inner)


def _split_by_rows(first: int, last: int) -> tuple[Tensor]:
    parts = 2 if last - first > 8 else 1  # what the row law forbids
    return (samples.product(poisoned(X[first:last]), poisoned(W), parts=parts),)


def _product(first: int, last: int) -> tuple[Tensor]:
    return (samples.product(poisoned(X[first:last]), poisoned(W)),)


def _small() -> Run:
    """Numbers below fp16's range, through which this Triton widens bf16 if let."""
    x, w = (X * 1e-6).to(BF16), W.to(BF16)
    return Run(
        "right product of small bf16 numbers",
        ROWS,
        lambda first, last: (samples.product(poisoned(x[first:last]), poisoned(w)),),
        lambda: ((x.double() @ w.double()).to(BF16),),
        ((0, 1),),
        rtol=1e-2,
        atol=1e-8,
    )


def _scale_case(mistake: str, reject: str | None) -> Run:
    def call(first: int, last: int) -> tuple[Tensor]:
        return (samples.scale(poisoned(WIDE[first:last]), poisoned(SCALE), mistake),)

    label = f"scale {mistake}".strip()
    return Run(label, 4, call, lambda: (SCALED[:4],), ((1, 2),), reject=reject)


def _product_case(label: str, call: object, reject: str | None) -> Run:
    return Run(
        label,
        ROWS,
        call,
        lambda: (PRODUCT,),
        ((0, 1), (15, 16), (3, 11), (0, 9)),
        reject=reject,
    )


CASES: list[Case] = [
    Native("right product", lambda: _native_product(8, (8, 64, 32)), dpas=True),
    Native("right turn", lambda: samples.turn(torch.empty(64, 64))),
    Native("right scale", lambda: _native_scale(1024)),
    Native(
        "undefined name",
        lambda: samples.undefined_kernel[(1,)](INTS, BLOCK=64),
        reject="nowhere is not defined",
    ),
    Native(
        "inline PTX",
        lambda: samples.ptx_kernel[(1,)](INTS, BLOCK=64),
        reject="inline assembly",
    ),
    Native(
        "one row a dot",
        lambda: _native_product(1, (1, 64, 32)),
        reject="should have M >= 8",
    ),
    Native(
        "shared memory",
        lambda: samples.turn(torch.empty(256, 256)),
        reject="out of resource: shared memory",
    ),
    Native("huge block", lambda: _native_scale(65536), reject="spills"),
    Native(
        "no matrix units",
        lambda: _native_scale(1024),
        dpas=True,
        reject="uses no matrix units",
    ),
    Native("nothing launched", lambda: None, reject="nothing was launched"),
    _scale_case("", None),
    _scale_case("wrong value", "not close"),
    _scale_case("forgets an element", "not close"),
    _scale_case("reads behind the row", "not close"),
    _scale_case("writes behind the row", "wrote outside"),
    _product_case("right product", _product, None),
    _small(),
    _product_case("sum cut by the number of rows", _split_by_rows, "row law"),
]
