"""The price of one arithmetic on a CPU: a lone row is multiplied as eight."""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from fspec.bench.cycle import seconds
from fspec.bench.parts import inputs, run_products, step_products
from fspec.bench.stats import Spread, ratios, spread
from fspec.layers.decoder import TargetParams


class RowPrice(NamedTuple):
    """Seconds of a step's products: a row as eight, and by the library alone.

    price: the first over the second, paired by run.
    weight_bytes: bytes of those weights.
    """

    eight: Spread
    lone: Spread
    price: Spread
    weight_bytes: int


@torch.no_grad()
def measure_rows(params: TargetParams, runs: int) -> RowPrice:
    """Time the products of a one-token step both ways, interleaved."""
    products = step_products(params, 1)
    x = inputs(products)

    def lone() -> None:
        for (_, weight), row in zip(products, x, strict=True):
            F.linear(row, weight)

    pairs = [
        (seconds(lambda: run_products(products, x)), seconds(lone))
        for _ in range(runs + 1)
    ][1:]
    eight, alone = zip(*pairs, strict=True)
    size = sum(w.numel() * w.element_size() for _, w in products)
    return RowPrice(spread(eight), spread(alone), ratios(eight, alone), size)
