"""Attention, the delta rule and what stands around them, at the 27B model's sizes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fspec.bench.kernels.case import Case, far, unequal
from fspec.bench.kernels.shapes import (
    CHANNELS,
    DIM,
    HEADS,
    HIDDEN,
    KEY_DIM,
    KEYS,
    KV_HEADS,
    PAGE,
    RAW,
    ROTARY,
    TAPS,
    VALUE_DIM,
    VALUES,
    Draw,
)
from fspec.kernels.base import Kernels
from fspec.kernels.delta.reference import delta
from fspec.kernels.on_cpu import VECTOR
from fspec.kernels.plan import plan as make_plan
from fspec.types import Batch, Rotation

CONTEXTS = (8_192, 32_768, 131_072, 262_144, 1_048_576)
BLOCK = 8
CHUNK = 4096
LAYERS = 24
Arenas: TypeAlias = tuple[Tensor, Tensor]  # of keys and of values
ROW_BYTES = 2 * KV_HEADS * DIM * 2  # of K and V of one token in one layer


def attention_cases(ops: Kernels, draw: Draw) -> Iterator[Case]:
    """One layer over a long context: a row, a block of eight, and eight single rows."""
    for context in CONTEXTS:
        length = context - BLOCK
        arenas, table = _arenas(draw, context)
        block = _block(draw, BLOCK)
        check = partial(_check_attention, ops, arenas, table, length, block)
        for t, single in ((1, False), (BLOCK, False), (BLOCK, True)):
            plan = _plan(arenas, table, length, t, single)
            rows = [x[:t] for x in block]
            calls = [
                partial(ops.attend, plan, layer, *rows, *arenas, table)
                for layer in range(len(arenas[0]))
            ]
            form = "8 single rows" if single else f"{t} row" + "s" * (t > 1)
            library = t == BLOCK and not single and context < 300_000
            yield Case(
                f"attention at {context}, {form}",
                check,
                calls,
                length * ROW_BYTES * (BLOCK if single else 1),
                _sdpa(arenas, length, block) if library else (),
                "SDPA, contiguous" if library else "",
            )


def _plan(
    arenas: Arenas, table: Tensor, length: int, t: int, single: bool = False
) -> Any:
    batch = Batch([0], [length], [t], [0], [0])
    return make_plan(batch, t, HEADS, arenas[0], table, single)


def _sdpa(
    arenas: Arenas, length: int, block: tuple[Tensor, ...]
) -> list[Callable[[], object]]:
    q, k, v = block
    total = length + BLOCK
    rows = [
        torch.cat([arena[0].flatten(0, 1)[:length], new]).transpose(0, 1)[None]
        for arena, new in zip(arenas, (k, v), strict=True)
    ]
    at = torch.arange(total, device=q.device)
    seen = at[None] <= at[length:, None]
    call = partial(
        F.scaled_dot_product_attention,
        q.transpose(0, 1)[None],
        *rows,
        attn_mask=seen,
        enable_gqa=True,
    )
    return [call] * 2


def _check_attention(
    ops: Kernels,
    arenas: Arenas,
    table: Tensor,
    length: int,
    block: tuple[Tensor, Tensor, Tensor],
) -> str:
    def run(start: int, first: int, t: int, single: bool) -> Tensor:
        plan = _plan(arenas, table, start, t, single)
        rows = [x[first : first + t] for x in block]
        return ops.attend(plan, 0, *rows, *arenas, table)

    full = run(length, 0, BLOCK, False)
    wrong = unequal(run(length, 0, BLOCK, True), full, "single rows")
    # row by row, each new key written to its page before the next
    for j in range(BLOCK):
        wrong = wrong or unequal(run(length + j, j, 1, False)[0], full[j], "one row")
        page = table[0, (length + j) // PAGE]
        for arena, new in zip(arenas, block[1:], strict=True):
            arena[0, page, (length + j) % PAGE] = new[j]
    return wrong or far(full[:1], _exact(arenas, table, length, block[0][0])[None])


def _exact(arenas: Arenas, table: Tensor, length: int, q: Tensor) -> Tensor:
    k, v = (arena[0, table[0]].flatten(0, 1)[: length + 1] for arena in arenas)
    heads = []
    for h in range(HEADS):
        kv = h // (HEADS // KV_HEADS)
        weight = (k[:, kv].double() @ q[h].double() * DIM**-0.5).softmax(0)
        heads.append(weight @ v[:, kv].double())
    return torch.stack(heads)


def _arenas(draw: Draw, rows: int) -> tuple[Arenas, Tensor]:
    count = -(-rows // PAGE)
    layers = max(1, min(8, (600 << 20) // (rows * ROW_BYTES)))
    arenas = tuple(draw(layers, count, PAGE, KV_HEADS, DIM) for _ in "kv")
    return (arenas[0], arenas[1]), draw.pages(count)


def _block(draw: Draw, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (
        draw(rows, HEADS, DIM),
        draw(rows, KV_HEADS, DIM),
        draw(rows, KV_HEADS, DIM),
    )
    return q, k, v


def prefill_attention_cases(ops: Kernels, draw: Draw) -> Iterator[Case]:
    """A chunk of 4,096 rows; the bytes are those of one reading of the keys."""
    for length in (0, 16_384, 61_440):
        arenas, table = _arenas(draw, length + CHUNK)
        block = _block(draw, CHUNK)
        plan = _plan(arenas, table, length, CHUNK)
        call = partial(ops.attend, plan, 0, *block, *arenas, table)
        one = [x[:1] for x in block]
        first = _plan(arenas, table, length, 1)
        alone = partial(ops.attend, first, 0, *one, *arenas, table)
        size = (length + CHUNK) * ROW_BYTES
        name = f"attention prefill, 4096 rows at {length}"
        yield Case(name, partial(_check_first, call, alone), [call], size)


def _check_first(call: Callable[[], Tensor], alone: Callable[[], Tensor]) -> str:
    return unequal(alone(), call()[:1], "first row alone")


def delta_cases(ops: Kernels, draw: Draw) -> Iterator[Case]:
    """One delta layer: a token, a block, a block that folds, a chunk of a prompt."""
    weights = _delta_weights(draw)
    s = draw(LAYERS, 1, VALUES, KEY_DIM, VALUE_DIM, dtype=torch.float32).mul_(0.2)
    rows = draw(LAYERS, 1, TAPS - 1 + 2 * 16 + 16, RAW)
    arena = draw(1, 1, PAGE, 1, 16)
    state = VALUES * KEY_DIM * VALUE_DIM * 4
    kinds = (("1 row", 1, 40, 0), ("8 rows", 8, 40, 0), ("8 rows, fold", 8, 44, 48))
    for name, t, length, edge in kinds:
        raw = draw(t, RAW)
        plan = ops.plan(Batch([0], [length], [t], [edge], [32]), t, 1, arena, arena)
        calls = [
            partial(ops.delta, plan, layer, *weights, raw, s, rows)
            for layer in range(LAYERS)
        ]
        check = partial(_check_delta, ops, weights, raw, s, rows, (t, length, edge))
        yield Case(f"delta layer, {name}", check, calls, state * (2 if edge else 1))
    raw = draw(CHUNK, RAW)
    facts = CHUNK, 0, CHUNK
    plan = ops.plan(Batch([0], [0], [CHUNK], [CHUNK], [0]), CHUNK, 1, arena, arena)
    call = partial(ops.delta, plan, 0, *weights, raw, s, rows)
    library = _fla(raw, s)
    yield Case(
        "delta prefill, 4096 rows",
        partial(_check_delta, ops, weights, raw, s, rows, facts),
        [call] * 2,
        CHUNK * (RAW + VALUES * VALUE_DIM) * 2,
        [library] * 2 if library else (),
        "fla chunk, after conv" if library else "fla-core is not installed",
    )


def _delta_weights(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    fp32 = torch.float32
    conv = draw(TAPS, CHANNELS, dtype=fp32).t() * 0.5
    return conv, -draw(VALUES, dtype=fp32).abs(), draw(VALUES, dtype=fp32)


def _check_delta(
    ops: Kernels,
    weights: tuple[Tensor, Tensor, Tensor],
    raw: Tensor,
    s: Tensor,
    rows: Tensor,
    facts: tuple[int, int, int],
) -> str:
    t, length, edge = facts
    start = length // 16 * 16
    arena = rows.new_empty(1, 1, PAGE, 1, 16)

    def run(count: int) -> tuple[Tensor, list[Tensor]]:
        batch = Batch([0], [length], [count], [edge if count == t else 0], [start])
        plan = ops.plan(batch, count, 1, arena, arena)
        return ops.delta(plan, 0, *weights, raw[:count], s, rows)

    full, ends = run(t)
    wrong = unequal(run(1)[0][0], full[0], "first row alone")
    if t > 100:  # float64, one row after another, would take minutes
        return wrong
    batch = Batch([0], [length], [t], [edge], [start])
    host: list[Any] = [x.cpu() for x in (*weights, raw, s[:1], rows[:1])]
    wanted, states = delta(batch, 0, *host)
    wrong = wrong or far(full.cpu(), wanted)
    return wrong or far(ends[0].cpu(), states[0], 1e-5)


def _fla(raw: Tensor, s: Tensor) -> Callable[[], object] | None:
    try:
        from fla.ops.gated_delta_rule import (  # pyright: ignore
            chunk_gated_delta_rule,
        )
    except ImportError:
        return None
    q, k, v, beta, decay = raw[None].split(
        [KEYS * KEY_DIM, KEYS * KEY_DIM, VALUES * VALUE_DIM, VALUES, VALUES], -1
    )
    repeat = VALUES // KEYS
    q, k = (
        F.normalize(x.unflatten(-1, (KEYS, KEY_DIM)), dim=-1).repeat_interleave(
            repeat, 2
        )
        for x in (q, k)
    )
    return partial(
        chunk_gated_delta_rule,
        q.contiguous(),
        k.contiguous(),
        v.unflatten(-1, (VALUES, VALUE_DIM)).contiguous(),
        F.logsigmoid(decay.float()),
        beta.sigmoid().contiguous(),
        initial_state=s[0],
        output_final_state=True,
    )


def small_cases(ops: Kernels, draw: Draw) -> Iterator[Case]:
    """What stands between the products, 8 rows: residual, norms, rotation, gates."""
    x, y = draw(BLOCK, HIDDEN), draw(BLOCK, HIDDEN)
    gain = draw(HIDDEN, dtype=torch.float32)
    packed = draw(BLOCK, 14_336)
    head_gain = draw(HEADS + KV_HEADS, DIM, dtype=torch.float32)
    by = Rotation(*(draw(BLOCK, 1, ROTARY // 2, dtype=torch.float32) for _ in "cs"))
    gate_up, z = draw(BLOCK, 34_816), draw(BLOCK, 16_480)[:, RAW:]
    mixed = draw(BLOCK, VALUES, VALUE_DIM)
    gate, wide = packed[:, -HEADS * DIM :], draw(BLOCK, HEADS * DIM)
    value_gain = draw(VALUE_DIM, dtype=torch.float32)
    kinds: list[tuple[str, Callable[..., Any], tuple[Any, ...], int]] = [
        ("residual and norm", ops.add_norm, (x, y, gain, 1e-6), 4 * x.numel()),
        ("head norm and rotation", ops.norm_rotate, (packed, head_gain, by, 1e-6), 0),
        ("sigmoid gate", ops.sigmoid_gate, (wide, gate), 3 * wide.numel()),
        ("norm and gate", ops.norm_gate, (mixed, z, value_gain, 1e-6), 3 * z.numel()),
        ("swiglu", ops.swiglu, (gate_up,), 3 * gate_up.numel() // 2),
    ]
    for name, op, args, elements in kinds:
        elements = elements or 2 * BLOCK * head_gain.numel()
        check = partial(_check_small, op, args)
        yield Case(f"{name}, 8 rows", check, [partial(op, *args)] * 20, 2 * elements)


def _check_small(op: Callable[..., Any], args: tuple[Any, ...]) -> str:
    host = pytree.tree_map_only(Tensor, Tensor.cpu, args)
    found, wanted = op(*args), getattr(VECTOR, op.__name__)(*host)
    leaves = zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True)
    return "".join(far(a.cpu(), b) for a, b in leaves)
