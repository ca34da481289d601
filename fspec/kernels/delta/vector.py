"""The delta rule on a CPU: one program of fixed shape for every chunk of rows.

Decoding a token, verifying a block and prefilling a prompt all run this program on
chunks that start at multiples of `CHUNK`. Rows that do not exist yet are zeros; a row
reads only the rows before it, so zeros and real later rows give it the same bits.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fspec.kernels.gate.vector import sigmoid, silu, softplus
from fspec.kernels.norm.vector import l2_norm
from fspec.kernels.rows import to_rows
from fspec.types import Batch

CHUNK = 16


class DeltaInputs(NamedTuple):
    """What the delta rule reads of rows: q, k `[t,h,k]`, v, beta and decay `[t,h]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    decay: Tensor


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
    """Run a layer's recurrence over the rows of a call, request by request.

    Args:
        plan: the call.
        layer: which of the state's layers.
        conv: fp32 taps of the convolution, the last one the current token's.
        speed: -exp(A_log), fp32.
        dt_bias: fp32.
        raw: new raw rows (q, k, v, beta logit, decay logit), as many a request.
        s: fp32 states, each at its request's start, a multiple of `CHUNK`.
        rows: held raw rows, those of the convolution's history first.

    Returns:
        Outputs of the new rows, fp32, zeros past a request's count; and each
        request's state at its edge, or as it stands where the edge is no later.
    """
    t, history = raw.shape[0] // len(plan.slots), conv.shape[1] - 1
    sizes = s.shape[2:]
    out, ends = [], []
    for i, (slot, length, count, edge, start) in enumerate(zip(*plan, strict=True)):
        state = s[layer, slot]
        if count == 0:
            out.append(raw.new_zeros(t, sizes[0], sizes[2], dtype=torch.float32))
            ends.append(state)
            continue
        known = rows[layer, slot, : history + length - start]
        every = torch.cat([known, raw[i * t : i * t + count]])
        inputs = delta_inputs(conv, speed, dt_bias, every, sizes)
        mixed, end = scan(state, *inputs, max(edge - start, 0))
        out.append(to_rows(mixed[-count:], t))
        ends.append(end)
    return torch.cat(out), ends


def delta_inputs(
    conv: Float[Tensor, "m taps"],
    speed: Float[Tensor, " h"],
    dt_bias: Float[Tensor, " h"],
    rows: Float[Tensor, "n c"],
    sizes: torch.Size,
) -> DeltaInputs:
    """Convolve, gate and normalise raw rows; the first `taps - 1` are history only.

    Args:
        conv: as in `delta`.
        speed: as in `delta`.
        dt_bias: as in `delta`.
        rows: of one request.
        sizes: value heads, key dim and value dim.

    Returns:
        Inputs of the delta rule for the other rows, heads already repeated: value head
        `h` uses key head `h // (value heads / key heads)`.
    """
    channels, taps = conv.shape
    heads, key_dim, value_dim = sizes
    count = rows.shape[0] - (taps - 1)
    keys = channels - heads * value_dim
    mixed, beta_decay = rows.split_with_sizes([channels, 2 * heads], -1)
    # a sum over taps has one order, which conv1d has not
    windows = mixed.float().unfold(0, taps, 1)
    active = silu((windows * conv).sum(-1)).to(rows.dtype).float()
    both, v = active.split_with_sizes([keys, channels - keys], -1)
    both = l2_norm(both.view(count, 2, -1, key_dim))
    repeats = heads // both.shape[2]
    both = both[:, :, :, None].expand(-1, -1, -1, repeats, -1).flatten(2, 3)
    beta, decay = gates(speed, dt_bias, *beta_decay[taps - 1 :].chunk(2, -1))
    q, k = both.unbind(1)
    return DeltaInputs(q * key_dim**-0.5, k, v.view(count, heads, -1), beta, decay)


def gates(
    speed: Float[Tensor, " h"],
    dt_bias: Float[Tensor, " h"],
    beta: Float[Tensor, "t h"],
    decay: Float[Tensor, "t h"],
) -> tuple[Float[Tensor, "t h"], Float[Tensor, "t h"]]:
    """Write strength in [0, 1] and log decay <= 0 from their logits, both in fp32."""
    rate = softplus(decay.float() + dt_bias)
    return sigmoid(beta), speed * rate


def scan(
    s: Float[Tensor, "h k v"],
    q: Float[Tensor, "t h k"],
    k: Float[Tensor, "t h k"],
    v: Float[Tensor, "t h v"],
    beta: Float[Tensor, "t h"],
    decay: Float[Tensor, "t h"],
    fold: int,
) -> tuple[Float[Tensor, "t h v"], Float[Tensor, "h k v"]]:
    """Run the gated delta rule over `t` rows from a chunk's edge.

    Args:
        s: fp32 state before the first row, which stands at a multiple of `CHUNK`.
        q: normalised and scaled queries, fp32.
        k: normalised keys, fp32.
        v: values, fp32.
        beta: write strength in [0, 1].
        decay: log decay, <= 0, nats per token.
        fold: rows that the returned state has seen, a multiple of `CHUNK` up to `t`.

    Returns:
        Outputs of every row, and the state after the first `fold` rows.

    Source: Gated DeltaNet, arXiv:2412.06464, section 3.2, in its chunk form.
    """
    rows, heads, dim = k.shape
    packed = torch.cat([q, k, v, beta[..., None], decay[..., None]], -1)
    packed = F.pad(packed, (0, 0, 0, 0, 0, -rows % CHUNK))
    packed = packed.view(-1, CHUNK, heads, packed.shape[2]).transpose(1, 2).contiguous()
    sizes = [2 * dim, v.shape[2], 1, 1]
    both, v, beta, decay = packed.split_with_sizes(sizes, -1)
    q, k = both.chunk(2, -1)
    total = decay.cumsum(2)
    # only differences are exponentiated, all <= 0 in the lower half that is kept:
    # exp(-total) would overflow
    fade = torch.exp((total - total.transpose(2, 3)).clamp(max=0)).tril()
    grown = torch.exp(total)
    both = torch.cat([q, k], 2)
    scores = torch.bmm(both.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
    scores = scores.view(-1, heads, 2, CHUNK, CHUNK) * fade[:, :, None]
    within, mix = scores.unbind(2)
    mix, strong, fresh = mix * beta, beta * grown, beta * v
    left = (k * fade[:, :, -1, :, None]).transpose(2, 3)
    out, folded, last = [], s, both.shape[0] - 1
    for c in range(last + 1):
        carried, predicted = torch.bmm(both[c], s).chunk(2, 1)
        wanted = torch.addcmul(fresh[c], strong[c], predicted, value=-1)
        # the solver takes the diagonal for ones and reads nothing above it
        delta = torch.linalg.solve_triangular(
            mix[c], wanted, upper=False, unitriangular=True
        )
        out.append(torch.baddbmm(grown[c] * carried, within[c], delta))
        if c < last or fold > c * CHUNK:
            s = torch.baddbmm(grown[c, :, -1:] * s, left[c], delta)
        if fold == (c + 1) * CHUNK:
            folded = s
    return torch.stack(out).transpose(1, 2).flatten(0, 1)[:rows], folded
