"""The numbers that the kernels are to reach on an H200, and what they reached."""

from collections.abc import Callable, Iterator, Sequence

from fspec.bench.kernels.case import Line
from fspec.bench.kernels.shapes import ATTENTION_LAYER, DELTA_LAYER, WEIGHTS
from fspec.bench.stats import Goal

LONG = (131_072, 262_144, 1_048_576)
BIG = 60_000_000  # weights from which a product is to come close to the memory's limit
DELTA_LAYERS, FULL_LAYERS = 48, 16


def goals(lines: Sequence[Line], stream: float) -> Iterator[Goal]:
    """Judge what was measured; what was not is left out."""
    by_name = {line.name: line for line in lines if not line.red}

    def line(start: str) -> Line | None:
        found = [x for name, x in by_name.items() if name.startswith(start)]
        return found[0] if found else None

    yield from _products(line, stream)
    yield from _packed(line, stream)
    yield from _attention(line, stream)
    yield from _rest(line)


def _products(line: Callable[[str], Line | None], stream: float) -> Iterator[Goal]:
    for rows in (1, 8):
        dense = {
            w.name: line(f"product {w.name} {w.outer} x {w.inner}, {rows} row")
            for w in WEIGHTS
        }
        for title, weights in (("delta", DELTA_LAYER), ("attention", ATTENTION_LAYER)):
            known = [x for w in weights if (x := dense[w.name])]
            if len(known) == len(weights):
                total = sum(x.library_us for x in known) / sum(x.us for x in known)
                name = f"products of a {title} layer over cuBLAS, {rows} rows"
                yield _least(name, total, 1.0, "x")
        for w in WEIGHTS:
            if one := dense[w.name]:
                yield _least(f"{w.name} over cuBLAS, {rows} rows", one.ratio, 0.85, "x")
                if w.inner * w.outer >= BIG:
                    name = f"{w.name}, share of bandwidth, {rows} rows"
                    yield _least(name, one.fraction(stream), 0.87)
    yield from _prefill(line)


def _prefill(line: Callable[[str], Line | None]) -> Iterator[Goal]:
    for w in WEIGHTS[:-1]:
        for rows in (512, 1024, 2048, 4096):
            if one := line(f"prefill {w.name}, {rows} rows"):
                name = f"prefill {w.name} over cuBLAS, {rows} rows"
                yield _least(name, one.ratio, 0.97, "x, the same product")


def _packed(line: Callable[[str], Line | None], stream: float) -> Iterator[Goal]:
    for rows in (1, 8):
        found = [line(f"w4a16 {w.name}, {rows} row") for w in DELTA_LAYER]
        known = [x for x in found if x]
        if len(known) == len(found):
            size, us = sum(x.size for x in known), sum(x.us for x in known)
            name = f"w4a16 products of a delta layer, share of bandwidth, {rows} rows"
            yield _least(name, size / us / stream, 0.60)


def _attention(line: Callable[[str], Line | None], stream: float) -> Iterator[Goal]:
    one, eight = (line(f"attention at 262144, {form}") for form in ("1 row", "8 rows"))
    if one and eight:
        name = "attention at 262144, 8 rows over 1 row"
        yield _most(name, eight.us / one.us, 1.05, "x")
    for context in LONG:
        for form in ("1 row", "8 rows"):
            found = line(f"attention at {context}, {form}")
            if found:
                name = f"attention at {context}, {form}, share of bandwidth"
                yield _least(name, found.fraction(stream), 0.90)
    for context, limit in ((8_192, 21), (32_768, 48)):
        found = line(f"attention at {context}, 8 rows")
        if found:
            yield _most(f"attention at {context}, 8 rows", found.us, limit, " us")


def _rest(line: Callable[[str], Line | None]) -> Iterator[Goal]:
    block, prefill = line("delta layer, 8 rows"), line("delta prefill")
    if block:
        yield _most("delta layer, 8 rows", block.us, 11, " us")
    counted = ((DELTA_LAYER, DELTA_LAYERS), (ATTENTION_LAYER, FULL_LAYERS))
    products = [
        (line(f"prefill {w.name}, 4096 rows"), layers)
        for weights, layers in counted
        for w in weights
    ]
    if prefill and all(one for one, _ in products):
        total = sum(one.us * layers for one, layers in products if one)
        name = "delta prefill of 48 layers, share of all products"
        yield _most(name, DELTA_LAYERS * prefill.us / total, 0.10)
    top = line("top-16 of written logits")
    if top:
        yield _most("top-16 over torch.topk", top.us / top.library_us, 0.5, "x")


def _least(name: str, value: float, target: float, unit: str = "") -> Goal:
    met = value >= target
    return Goal(name, f">= {target:.2f}{unit}", f"{value:.3f}", met)


def _most(name: str, value: float, target: float, unit: str = "") -> Goal:
    met = value <= target
    return Goal(name, f"<= {target:g}{unit}", f"{value:.3f}", met)
