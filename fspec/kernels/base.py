"""The record of everything in the model that depends on the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Kernels:
    """One form of every operation, chosen once for a target by its device.

    Rows `r` are those of all requests of a call, `b * t` of them where a request has
    `t`. `reference.py` of each operation's folder says what it computes.

    name: what reports call it.
    prepare: `(kernels, weights) -> kernels`, once a target: what the dense weights
        `[i, o]` of its layers allow, such as products that the library may take over.
    plan: `(batch, t, heads, arena, table) -> plan`, once a call: what `attend` and
        `delta` need of it whatever the layer. `heads` counts query heads; `arena` is
        `[layer, page, row, kv, k]`, of which only the sizes and the device are read;
        `table` int64 `[slot, n]`.
    product: `(x [r, i], w [i, o]) -> [r, o]`; `w` is dense or packed.
    lone_product: `(x [1, i], w) -> [1, o]`, a row that always comes alone.
    rms_norm: `(x [r, d], gain [d], eps) -> [r, d]`.
    add_norm: `(x [r, d], y [r, d], gain, eps) -> (x + y, its norm)`.
    norm_rotate: `(packed [r, p], gain [h, k], by, eps) -> [r, h, k]`, of the first
        `h * k` columns.
    sigmoid_gate: `(mixed [r, c], gate [r, c]) -> [r, c]`.
    norm_gate: `(mixed [r, h, v], z [r, h * v], gain [v], eps) -> [r, h * v]`.
    swiglu: `(gate_up [r, 2 f]) -> [r, f]`.
    attend: `(plan, layer, q [r, h, k], k [r, kv, k], v, keys, values, table)
        -> [r, h, k]`; `keys` and `values` are arenas.
    delta: `(plan, layer, conv, speed, dt_bias, raw [r, c], s [layer, slot, h, k, v],
        rows [layer, slot, n, c]) -> (mixed [r, h, v], ends)`; `ends[i]` is request i's
        state at its edge.
    argmax: `(hidden [r, d], w [d, n]) -> [r]`, the id of each row's greatest logit.
    top: `(hidden [r, d], w [d, n], count) -> (values, ids)`, each `[r, count]`.
    """

    name: str
    prepare: Callable[..., Any]
    plan: Callable[..., Any]
    product: Callable[..., Any]
    lone_product: Callable[..., Any]
    rms_norm: Callable[..., Any]
    add_norm: Callable[..., Any]
    norm_rotate: Callable[..., Any]
    sigmoid_gate: Callable[..., Any]
    norm_gate: Callable[..., Any]
    swiglu: Callable[..., Any]
    attend: Callable[..., Any]
    delta: Callable[..., Any]
    argmax: Callable[..., Any]
    top: Callable[..., Any]


# static in a pytree: `torch.func` and `map_tensors` pass it by
pytree.register_constant(Kernels)
