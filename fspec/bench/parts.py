"""The parts of a cycle by themselves: the same calls, at the shapes of one cycle.

Each function here calls what the forward pass calls, on the state as it stands and
the engine's own weights, and returns nothing. A test holds their library calls
against those of a real cycle, so they cannot fall behind the engine unseen.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fspec.algorithms.step import DecodeState
from fspec.kernels.attention import attend, key_tiles
from fspec.kernels.delta import CHUNK
from fspec.kernels.product import product
from fspec.layers.attention import AttentionParams
from fspec.layers.decoder import LayerParams, MtpParams, TargetParams, delta_layers
from fspec.layers.deltanet import DeltaParams, delta_scan
from fspec.layers.mlp import MlpParams
from fspec.state.deltanet import held_rows
from fspec.state.pages import KVPages, gather_rows
from fspec.state.target import lengths


class Product(NamedTuple):
    """A product of a cycle: `rows` rows and a weight `[out, in]`."""

    rows: int
    weight: Tensor


def step_products(params: TargetParams, rows: int) -> list[Product]:
    """List the target's products over `rows` rows, in order, the head's last."""
    weights = [w for layer in params.layers for w in _weights(layer)]
    return [Product(rows, w) for w in (*weights, params.head)]


def cycle_products(params: TargetParams, width: int, rows: int) -> list[Product]:
    """List the products of a cycle: drafts, verification, absorption of `rows`."""
    block = step_products(params, width + 1)
    mtp = params.mtp
    if not width or mtp is None:
        return block
    chain = [Product(1, w) for w in (mtp.fc, *_weights(mtp.layer), params.head)]
    mixer = mtp.layer.mixer
    assert isinstance(mixer, AttentionParams)  # the loader makes no other
    key_value = mixer.qkv[2 * mixer.out.shape[1] :]
    return [*chain * width, *block, Product(rows, mtp.fc), Product(rows, key_value)]


def inputs(products: list[Product]) -> list[Tensor]:
    """Make rows for each product."""
    return [torch.full((rows, w.shape[1]), 0.01) for rows, w in products]


def run_products(products: list[Product], rows: list[Tensor]) -> None:
    """Multiply, in the engine's groups of eight rows."""
    for (_, weight), x in zip(products, rows, strict=True):
        product(x, weight)


def run_attention(params: TargetParams, state: DecodeState, width: int) -> None:
    """Attend as a cycle does: the block in every full layer, then the draft chain."""
    config, pages = params.config, state.target.pages
    length, block = lengths(state.target)[0], width + 1
    q = params.embed.new_full((block, config.heads, config.head_dim), 0.01)
    new = params.embed.new_full((config.kv_heads, block, config.head_dim), 0.01)
    at = torch.arange(length, length + block)
    for layer in range(config.full_layers):
        k, v = (key_tiles(rows, new) for rows in _held(pages, layer, length))
        attend(q, at, k, v)
    if not width:
        return
    old_k, old_v = _held(state.drafter.pages, 0, length - 1)
    for step in range(width):
        k, v = (key_tiles(old, new[:, : step + 1]) for old in (old_k, old_v))
        attend(q[:1], torch.tensor([length - 1 + step]), k, v)


def run_delta(params: TargetParams, state: DecodeState, width: int) -> None:
    """Run the delta layers' scans of a cycle: the block's, and what a commit folds."""
    delta, history = state.target.delta, params.config.conv - 1
    length, keep = lengths(state.target)[0], int(state.target.recent[0, 0])
    start, held = held_rows(delta, 0, length, history)
    fold = (keep - start) // CHUNK * CHUNK
    new = delta.rows.new_full((width + 1, delta.rows.shape[3]), 0.01)
    for layer, weights in enumerate(delta_layers(params)):
        s, known = delta.s[layer, 0], delta.rows[layer, 0, :held]
        every = torch.cat([known, new])
        delta_scan(weights, s, every)
        if fold > 0:
            delta_scan(weights, s, every[: history + fold])


def shrunken(params: TargetParams) -> TargetParams:
    """Make a target of the same layers whose every size is near its smallest.

    Its cycle runs the same program on next to no numbers, so what it takes is what
    Python and the library's dispatch take.
    """
    config = replace(
        params.config,
        **dict.fromkeys(("hidden", "intermediate", "head_dim"), 8),
        **dict.fromkeys(("key_dim", "value_dim"), 8),
        **dict.fromkeys(("heads", "value_heads"), 4),
        **dict.fromkeys(("kv_heads", "key_heads"), 2),
        vocab=16,
    )
    mtp = params.mtp and MtpParams(
        _full(8, 16), _full(8), _full(8), _small(params.mtp.layer), _full(8)
    )
    layers = tuple(_small(layer) for layer in params.layers)
    inv_freq = params.inv_freq[:2]
    return TargetParams(
        config, _full(16, 8), layers, _full(8), _full(16, 8), inv_freq, mtp
    )


def count_calls(run: Callable[[], object]) -> Counter[str]:
    """Count the library calls of `run` by name, views included."""
    with torch.no_grad(), _Counter() as counter:
        run()
    return counter.calls


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def _weights(layer: LayerParams) -> tuple[Tensor, ...]:
    mixer = layer.mixer
    first = mixer.qkv if isinstance(mixer, AttentionParams) else mixer.in_proj
    return first, mixer.out, layer.mlp.gate_up, layer.mlp.down


def _held(pages: KVPages, layer: int, length: int) -> tuple[Tensor, Tensor]:
    table = pages.table[0]
    k, v = (gather_rows(arena[layer], table, length) for arena in (pages.k, pages.v))
    return k, v


def _full(*shape: int) -> Tensor:
    return torch.full(shape, 0.01)


def _small(layer: LayerParams) -> LayerParams:
    gain, out = _full(8), _full(8, 32)
    if isinstance(layer.mixer, AttentionParams):
        mixer = AttentionParams(_full(96, 8), out, gain, gain)
    else:
        conv = _full(64, layer.mixer.conv.shape[1])
        mixer = DeltaParams(_full(104, 8), conv, _full(4), _full(4), gain, out)
    return LayerParams(mixer, MlpParams(_full(16, 8), _full(8, 8)), gain, gain)
