"""What the gated delta rule is: one row after another."""

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.gate.reference import sigmoid, silu, softplus
from fspec.kernels.norm.reference import l2_norm
from fspec.types import Batch


def delta(
    plan: Batch,
    layer: int,
    conv: Float[Tensor, "m taps"],
    speed: Float[Tensor, " h"],
    dt_bias: Float[Tensor, " h"],
    raw: Float[Tensor, "r c"],
    s: Float[Tensor, "layer slot h k v"],
    rows: Float[Tensor, "layer slot n c"],
) -> tuple[Float[Tensor, "r h v"], list[Tensor]]:
    """Run the recurrence over every request's held and new rows, in float64.

    A request's new rows stand at `i * t` of `raw`. Position p is held row
    `p - start + taps - 1` below the committed length, and new row `p - length` from
    there on. Outputs past a count are zeros.
    """
    t, (_, heads, _, dim) = len(raw) // len(plan.slots), s.shape[1:]
    out, ends = raw.new_zeros(len(raw), heads, dim, dtype=torch.float32), []
    for i, (slot, length, count, edge, start) in enumerate(zip(*plan, strict=True)):
        state, first = s[layer, slot], i * t
        if count == 0:
            ends.append(state)
            continue
        held = rows[layer, slot, : length - start + conv.shape[1] - 1]
        every = torch.cat([held, raw[first : first + count]])
        inputs = delta_inputs(conv, speed, dt_bias, every, state.shape)
        mixed, end = scan(state, *inputs, max(edge - start, 0))
        out[first : first + count] = mixed[length - start :]
        ends.append(end)
    return out, ends


def delta_inputs(
    conv: Float[Tensor, "m taps"],
    speed: Float[Tensor, " h"],
    dt_bias: Float[Tensor, " h"],
    rows: Float[Tensor, "n c"],
    sizes: torch.Size,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Inputs of `scan` for all rows but the first `taps - 1`, a row and a head a time.

    The convolved channels are q of every key head, k of every key head and v of every
    value head; value head h uses key head `h // (value heads / key heads)`. They are
    rounded to the rows' dtype behind silu; q and k then get unit length, q is scaled by
    `key dim ** -0.5`.
    """
    (channels, taps), (heads, key_dim, value_dim) = conv.shape, sizes
    keys = (channels - heads * value_dim) // 2
    wide, count = rows.double(), len(rows) - taps + 1
    q, k = (rows.new_zeros(count, heads, key_dim, dtype=torch.float64) for _ in "qk")
    v = rows.new_zeros(count, heads, value_dim, dtype=torch.float64)
    for t in range(count):
        window = wide[t : t + taps, :channels]
        active = silu((window.t() * conv.double()).sum(1)).to(rows.dtype).double()
        for h in range(heads):
            at = h // (heads * key_dim // keys) * key_dim
            q[t, h] = l2_norm(active[at : at + key_dim][None])[0] * key_dim**-0.5
            k[t, h] = l2_norm(active[keys + at : keys + at + key_dim][None])[0]
            v[t, h] = active[2 * keys + h * value_dim :][:value_dim]
    beta, decay = wide[taps - 1 :, channels:].chunk(2, -1)
    return q, k, v, sigmoid(beta), speed.double() * softplus(decay + dt_bias.double())


def scan(
    s: Float[Tensor, "h k v"],
    q: Float[Tensor, "t h k"],
    k: Float[Tensor, "t h k"],
    v: Float[Tensor, "t h v"],
    beta: Float[Tensor, "t h"],
    decay: Float[Tensor, "t h"],
    fold: int,
) -> tuple[Float[Tensor, "t h v"], Float[Tensor, "h k v"]]:
    """Run the recurrence over `t` rows in float64: decay, predict, write, read.

    Args:
        s: the state before the first row.
        q: normalised and scaled queries.
        k: normalised keys.
        v: values.
        beta: write strength in [0, 1].
        decay: log decay, <= 0, nats per token.
        fold: rows that the returned state has seen.

    Returns:
        Outputs of every row, and the state after the first `fold`; both fp32.

    Source: Gated DeltaNet, arXiv:2412.06464, eq. 10.
    """
    s = folded = s.double()
    out = []
    for t in range(q.shape[0]):
        s = s * decay[t].double().exp()[:, None, None]
        predicted = (s * k[t].double()[:, :, None]).sum(1)
        delta = beta[t].double()[:, None] * (v[t].double() - predicted)
        s = s + k[t].double()[:, :, None] * delta[:, None, :]
        out.append((s * q[t].double()[:, :, None]).sum(1))
        if t + 1 == fold:
            folded = s
    return torch.stack(out).float(), folded.float()
