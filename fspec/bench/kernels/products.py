"""Dense and packed products and the head, at the 27B model's sizes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fspec.bench.kernels.case import SEVERAL, Case, far, unequal
from fspec.bench.kernels.shapes import HEAD, VOCAB, WEIGHTS, Draw
from fspec.kernels.base import Kernels
from fspec.kernels.packed import Packed
from fspec.kernels.packed.triton import dequantize
from fspec.kernels.product.triton import LIBRARY_ROWS, product, prove
from fspec.kernels.vocab.triton import top_logits

ROWS = (1, 8, 16, 64, 128)
PACKED_ROWS = (1, 8, 16, 128)


def dense_cases(ops: Kernels, draw: Draw) -> Iterator[Case]:
    """Decode, verify and batched blocks: rows equal bit for bit, beside cuBLAS."""
    for sizes in WEIGHTS:
        several = _several(partial(draw.weight, sizes), 2 * sizes.inner * sizes.outer)
        x = draw(max(ROWS), sizes.inner)
        for rows in ROWS:
            part = x[:rows]
            yield Case(
                f"product {sizes.name} {sizes.outer} x {sizes.inner}, {rows} rows",
                partial(_check, ops, x, several[0], several[0], rows),
                [partial(ops.product, part, w) for w in several],
                2 * sizes.inner * sizes.outer,
                [partial(F.linear, part, w.t()) for w in several],
                "cuBLAS",
            )


def prefill_cases(ops: Kernels, draw: Draw) -> Iterator[Case]:
    """Chunks of a prompt: the library's product where its bytes are those of a tile."""
    for sizes in WEIGHTS[:-1]:
        w = draw.weight(sizes)
        proven = prove(w)
        x = draw(max(LIBRARY_ROWS), sizes.inner)
        for rows in LIBRARY_ROWS[::-1]:
            part = x[:rows]
            ours = partial(product, library=proven)
            name = "library" if (*w.shape, rows) in proven else "tiles"
            yield Case(
                f"prefill {sizes.name}, {rows} rows ({name})",
                partial(_check_prefill, ours, part, w),
                [partial(ours, part, w)] * 2,
                2 * (w.numel() + part.numel() + rows * sizes.outer),
                [partial(F.linear, part, w.t())] * 2,
                "cuBLAS",
            )


def packed_cases(ops: Kernels, draw: Draw) -> Iterator[Case]:
    """W4A16, group 128, symmetric: the dense product of the weight it stands for."""
    for sizes in WEIGHTS[:-1]:
        size = sizes.inner * sizes.outer // 2 + sizes.inner * sizes.outer // 64
        several = _several(partial(draw.packed, sizes), size)
        x = draw(max(PACKED_ROWS), sizes.inner)
        dense = dequantize(several[0])
        for rows in PACKED_ROWS:
            yield Case(
                f"w4a16 {sizes.name}, {rows} rows",
                partial(_check, ops, x, several[0], dense, rows),
                [partial(ops.product, x[:rows], w) for w in several],
                size,
            )


def head_cases(ops: Kernels, draw: Draw) -> Iterator[Case]:
    """The head with its search fused, and the search alone on written logits."""
    several = _several(partial(draw.weight, HEAD), 2 * HEAD.inner * HEAD.outer)
    x, size = draw(8, HEAD.inner), 2 * HEAD.inner * HEAD.outer
    for rows in (1, 8):
        part = x[:rows]
        yield Case(
            f"head with argmax, {rows} rows",
            partial(_check_top, ops, part, several[0], 1),
            [partial(ops.argmax, part, w) for w in several],
            size,
            [partial(_library_argmax, part, w) for w in several],
            "linear, argmax",
        )
    part = x[:7]
    yield Case(
        "head with top-16, 7 rows",
        partial(_check_top, ops, part, several[0], 16),
        [partial(ops.top, part, w, 16) for w in several],
        size,
        [partial(_library_top, part, w) for w in several],
        "linear, topk",
    )
    logits = [draw(7, VOCAB) for _ in range(8)]
    yield Case(
        "top-16 of written logits [7, 248320]",
        partial(_check_logits, logits[0]),
        [partial(top_logits, x, 16) for x in logits],
        2 * 7 * VOCAB,
        [partial(torch.topk, x, 16) for x in logits],
        "topk",
    )


def _several(make: Callable[[], Any], size: int) -> list[Any]:
    return [make() for _ in range(max(2, min(24, SEVERAL // size + 1)))]


def _check(
    ops: Kernels, x: Tensor, w: Tensor | Packed, dense: Tensor, rows: int
) -> str:
    found = ops.product(x[:rows], w)
    alone = torch.cat([ops.product(x[i : i + 1], w) for i in range(min(rows, 4))])
    columns = slice(0, 2048)
    wanted = x[:rows].double() @ dense[:, columns].double()
    return unequal(alone, found[: len(alone)], "rows alone") or far(
        found[:, columns], wanted
    )


def _check_prefill(
    ours: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor
) -> str:
    found = ours(x, w)
    places = [0, len(x) // 2, len(x) - 1]
    alone = torch.cat([product(x[i : i + 1], w) for i in places])
    return unequal(alone, found[places], "rows alone")


def _check_top(ops: Kernels, x: Tensor, w: Tensor, count: int) -> str:
    values, ids = ops.top(x, w, count)
    logits = ops.product(x, w)
    wanted, places = torch.sort(logits, dim=-1, descending=True, stable=True)
    wrong = unequal(values, wanted[:, :count], "values")
    wrong = wrong or unequal(ids, places[:, :count], "ids")
    return wrong or unequal(ops.argmax(x, w), places[:, 0], "argmax")


def _check_logits(logits: Tensor) -> str:
    values, ids = top_logits(logits, 16)
    wanted, places = torch.sort(logits, dim=-1, descending=True, stable=True)
    wrong = unequal(values, wanted[:, :16], "values")
    return wrong or unequal(ids, places[:, :16], "ids")


def _library_argmax(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w.t()).argmax(-1)


def _library_top(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w.t()).topk(16).indices
