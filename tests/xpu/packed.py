"""The product with weights of four bits: fused for few rows, written out for many."""

import torch
from torch import Tensor

from fspec.kernels.packed import Packed, pack, reference, triton
from tests.xpu._data import inside, random
from tests.xpu._shapes import B27
from tools.xpu.memory import poisoned
from tools.xpu.spec import Case, Native, Run

BF16 = torch.bfloat16
COUNTS = (1, 8, 32, 64)


def _weight(outer: int, inner: int, group: int, asym: bool) -> Packed:
    """A weight of real size: `pack` would write all of it."""
    tiles, blocks = -(-outer // 64), -(-inner // 128)
    groups = blocks * 128 // group
    return Packed(
        torch.empty(tiles, blocks, 64, 16, dtype=torch.int32),
        torch.empty(groups, tiles * 64, dtype=BF16),
        torch.empty(groups, tiles * 64, dtype=torch.int8) if asym else None,
        inner,
        outer,
        group,
    )


def _native(group: int, asym: bool) -> Native:
    shapes = (2 * B27.inner, B27.hidden), (B27.hidden, B27.inner)

    def launch() -> None:
        for outer, inner in shapes:
            w = _weight(outer, inner, group, asym)
            for rows in COUNTS:
                triton.product(torch.empty(rows, inner, dtype=BF16), w)

    kind = "asymmetric" if asym else "symmetric"
    return Native(f"W4A16 products, groups of {group}, {kind}, 27B", launch)


def _run(inner: int, outer: int, group: int, asym: bool) -> Run:
    rows, groups = 20, -(-inner // group)
    codes = (random(outer, inner) * 3 + 8).round().clamp(0, 15).int()
    scale = random(outer, groups, seed=1).abs().to(BF16)
    zero = (random(outer, groups, seed=2) + 8).round().int() if asym else None
    w, x = pack(codes, scale, zero, group), random(rows, inner, seed=3).to(BF16)

    def call(first: int, last: int) -> tuple[Tensor, ...]:
        zeros = None if w.zero is None else poisoned(w.zero)
        kept = (poisoned(w.words), poisoned(w.scale), zeros)
        some = inside(x[first:last], 8)
        return (triton.product(some, Packed(*kept, inner, outer, group)),)

    def wanted() -> tuple[Tensor, ...]:
        dense = reference.dequantize(w).double()
        return ((x.double() @ dense).to(BF16),)

    kind = "asymmetric" if asym else "symmetric"
    return Run(
        f"W4A16 product, {inner} to {outer}, groups of {group}, {kind}",
        rows,
        call,
        wanted,
        ((0, 1), (3, 11)),
        rtol=1e-2,
        atol=0.5,
    )


CASES: list[Case] = [
    *(_native(group, asym) for group in (32, 128) for asym in (False, True)),
    _run(1024, 40, 128, False),
    _run(200, 70, 32, True),
]
