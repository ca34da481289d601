"""The price of one arithmetic on a CPU: a lone row is multiplied as eight."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fspec.bench.parts import step_weights
from fspec.bench.stats import Spread, ratios, spread
from fspec.kernels.packed import Weight
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
    weights, ops = step_weights(params), params.kernels
    pairs = [
        (_seconds(weights, ops.product), _seconds(weights, ops.lone_product))
        for _ in range(runs + 1)
    ][1:]
    eight, alone = zip(*pairs, strict=True)
    size = sum(w.numel() * w.element_size() for w in weights)
    return RowPrice(spread(eight), spread(alone), ratios(eight, alone), size)


def _seconds(
    weights: list[Tensor], multiply: Callable[[Tensor, Weight], Tensor]
) -> float:
    rows = [w.new_full((1, w.shape[0]), 0.01) for w in weights]
    begin = time.perf_counter()
    for x, weight in zip(rows, weights, strict=True):
        multiply(x, weight)
    return time.perf_counter() - begin
