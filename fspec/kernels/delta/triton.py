"""The delta rule on a GPU: raw rows in, outputs out, in chunks at absolute positions."""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, overlap, power, release_next, wait_before

CHUNK = 16
CHANNELS = 128  # of a program that convolves
COLUMNS = 16  # value dims of a program that scans


@triton.jit
def _raw(known, fresh, p, length, end, KNOWN_ROW, FRESH_ROW, column, inside):
    """Raw rows at positions p: the state's below `length`, then the call's, then 0."""
    # two masked loads and not one through a chosen pointer: those stay 16 bytes wide
    old = p < length
    new = (p >= length) & (p < end)
    wide = p.to(tl.int64)[:, None]
    a = tl.load(
        known + wide * KNOWN_ROW + column[None, :],
        mask=inside[None, :] & old[:, None],
        other=0.0,
    )
    b = tl.load(
        fresh + wide * FRESH_ROW + column[None, :],
        mask=inside[None, :] & new[:, None],
        other=0.0,
    )
    return a.to(tl.float32) + b.to(tl.float32)


@triton.jit
def _convolve(
    known,
    fresh,
    conv,
    mixed,
    at,
    length,
    end,
    KNOWN_ROW,
    FRESH_ROW,
    conv_channel,
    conv_tap,
    channel,
    CH: tl.constexpr,
    C: tl.constexpr,
    TAPS: tl.constexpr,
):
    inside = channel < CH
    total = tl.zeros([C, channel.shape[0]], tl.float32)
    for tap in tl.static_range(TAPS):
        x = _raw(
            known,
            fresh,
            at - (TAPS - 1) + tap,
            length,
            end,
            KNOWN_ROW,
            FRESH_ROW,
            channel,
            inside,
        )
        weight = tl.load(
            conv + channel * conv_channel + tap * conv_tap, mask=inside, other=0.0
        )
        total = total + x * weight[None, :]
    total = tl.where((at < end)[:, None], total / (1.0 + tl.exp(-total)), 0.0)
    out = mixed + tl.arange(0, C)[:, None] * CH + channel[None, :]
    tl.store(out, total.to(mixed.dtype.element_ty), mask=inside[None, :])


@triton.jit
def _gate(
    known,
    fresh,
    speed,
    dt_bias,
    gates,
    at,
    length,
    end,
    KNOWN_ROW,
    FRESH_ROW,
    HV: tl.constexpr,
    PH: tl.constexpr,
    CH: tl.constexpr,
    C: tl.constexpr,
):
    h = tl.arange(0, PH)
    inside = h < HV
    fast = tl.load(speed + h, mask=inside, other=0.0)
    bias = tl.load(dt_bias + h, mask=inside, other=0.0)
    live = inside[None, :] & (at < end)[:, None]
    b = _raw(known, fresh, at, length, end, KNOWN_ROW, FRESH_ROW, CH + h, inside)
    x = (
        _raw(known, fresh, at, length, end, KNOWN_ROW, FRESH_ROW, CH + HV + h, inside)
        + bias[None, :]
    )
    rate = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))
    total = tl.cumsum(tl.where(live, fast[None, :] * rate, 0.0), 0)
    out = gates + h[None, :] * C + tl.arange(0, C)[:, None]
    tl.store(out, tl.where(live, 1.0 / (1.0 + tl.exp(-b)), 0.0), mask=inside[None, :])
    tl.store(out + HV * C, total, mask=inside[None, :])


@triton.jit
def rows_kernel(
    known,
    fresh,
    conv,
    speed,
    dt_bias,
    facts,
    mixed,
    gates,
    KNOWN_ROW,
    KNOWN_SLOT,
    FRESH_ROW,
    T,
    CHUNKS,
    conv_channel,
    conv_tap,
    HV: tl.constexpr,
    PH: tl.constexpr,
    CH: tl.constexpr,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Convolve and gate every row from the chunk's edge on; rows past the end are zeros."""
    part = tl.program_id(0)
    n = tl.program_id(1)
    i = tl.program_id(2)
    slot = tl.load(facts + 5 * i).to(tl.int64)
    start = tl.load(facts + 5 * i + 1)
    length = tl.load(facts + 5 * i + 2)
    end = length + tl.load(facts + 5 * i + 3)
    # index of position p in the state's rows is p - start + TAPS - 1
    known += slot * KNOWN_SLOT + (TAPS - 1 - start).to(tl.int64) * KNOWN_ROW
    fresh += (i * T - length).to(tl.int64) * FRESH_ROW
    chunk = i.to(tl.int64) * CHUNKS + n
    at = start + n * C + tl.arange(0, C)
    release_next(PDL)
    wait_before(PDL)
    if start + n * C < end:
        if part * BLOCK < CH:
            _convolve(
                known,
                fresh,
                conv,
                mixed + chunk * C * CH,
                at,
                length,
                end,
                KNOWN_ROW,
                FRESH_ROW,
                conv_channel,
                conv_tap,
                part * BLOCK + tl.arange(0, BLOCK),
                CH,
                C,
                TAPS,
            )
        else:
            _gate(
                known,
                fresh,
                speed,
                dt_bias,
                gates + chunk * 2 * HV * C,
                at,
                length,
                end,
                KNOWN_ROW,
                FRESH_ROW,
                HV,
                PH,
                CH,
                C,
            )


@triton.jit
def _head(x):
    """The upper half of an fp32 number: itself in bf16, and what is left."""
    bits = x.to(tl.int32, bitcast=True)
    half = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return half, x - (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _split(x):
    """Three bf16 numbers whose sum is x, exactly: eight bits of it each."""
    high, rest = _head(x)
    middle, rest = _head(rest)
    low, _ = _head(rest)
    return high, middle, low


@triton.jit
def _times(a, b):
    """fp32 a times b, which is exact in bf16: three products of the parts of a."""
    if b.dtype == tl.bfloat16:
        high, middle, low = _split(a)
        y = tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        y = tl.dot(a, b, input_precision="ieee")
    return y


@triton.jit
def _small(a, b):
    """fp32 a times fp32 b: the six products of their parts that can be seen in fp32."""
    ah, am, al = _split(a)
    bh, bm, bl = _split(b)
    y = tl.dot(al, bh, tl.dot(am, bm, tl.dot(ah, bl)))
    return tl.dot(ah, bh, tl.dot(ah, bm, tl.dot(am, bh, y)))


@triton.jit
def _solve(a, C: tl.constexpr):
    """Inverse of I + a for strictly lower a: blocks of eight by powers, for d^8 = 0."""
    r = tl.arange(0, C)
    one = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
    near = r[:, None] // 8 == r[None, :] // 8
    d = tl.where(near, a, 0.0)
    low = tl.where(near, 0.0, a)
    d2 = _small(d, d)
    d4 = _small(d2, d2)
    t = _small(one - d, one + d2)
    t = _small(t, one + d4)
    return t - _small(t, _small(low, t))


@triton.jit
def _pair(a, b):
    if a.dtype == tl.bfloat16:
        y = tl.dot(a, tl.trans(b))
    else:
        y = tl.dot(a, tl.trans(b), input_precision="ieee")
    return y


@triton.jit
def _length(x, C: tl.constexpr):
    r = tl.arange(0, C)
    return tl.rsqrt(tl.sum(tl.where(r[:, None] == r[None, :], x, 0.0), 1) + 1e-6)


@triton.jit
def _relate(q, k, beta, total, DK: tl.constexpr, C: tl.constexpr):
    """What a chunk's rows are to each other: within [C,C], solve [C,C], lengths of q and k."""
    r = tl.arange(0, C)
    kk = _pair(k, k)
    rk = _length(kk, C)
    rq = _length(_pair(q, q), C) * (DK**-0.5)
    low = r[:, None] >= r[None, :]
    fade = tl.where(
        low, tl.exp(tl.where(low, total[:, None] - total[None, :], 0.0)), 0.0
    )
    fade = fade * rk[None, :]
    within = _pair(q, k) * fade * rq[:, None]
    mix = tl.where(r[:, None] > r[None, :], kk * fade * (beta * rk)[:, None], 0.0)
    return within, _solve(mix, C), rq, rk


@triton.jit
def _advance(s, q, k, v, within, solve, rq, rk, beta, total):
    """s [v, k] transposed, v [v, C] transposed."""
    grown = tl.exp(total)
    predicted = _times(s, tl.trans(k)) * (grown * rk)[None, :]
    carried = _times(s, tl.trans(q)) * (grown * rq)[None, :]
    delta = _small(beta[None, :] * (v - predicted), tl.trans(solve))
    return carried + _small(delta, tl.trans(within)), delta


@triton.jit
def _fold(s, k, delta, rk, total, C: tl.constexpr):
    last = tl.sum(tl.where(tl.arange(0, C) == C - 1, total, 0.0), 0)
    left = delta * (rk * tl.exp(last - total))[None, :]
    return s * tl.exp(last) + _times(left, k)


@triton.jit
def _load_rows(
    mixed,
    chunk,
    h,
    col,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    C: tl.constexpr,
    PK: tl.constexpr,
):
    CH: tl.constexpr = 2 * HK * DK + HV * DV
    r = tl.arange(0, C)
    d = tl.arange(0, PK)
    row = mixed + (chunk * C + r) * CH
    at = row[:, None] + (h // (HV // HK)) * DK + d[None, :]
    q = tl.load(at, mask=(d < DK)[None, :], other=0.0)
    k = tl.load(at + HK * DK, mask=(d < DK)[None, :], other=0.0)
    v = tl.load(
        row[None, :] + 2 * HK * DK + h * DV + col[:, None],
        mask=(col < DV)[:, None],
        other=0.0,
    )
    return q, k, v.to(tl.float32)


@triton.jit
def scan_kernel(
    mixed,
    gates,
    kept,
    kept_r,
    state,
    out,
    folded,
    facts,
    T,
    CHUNKS,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    C: tl.constexpr,
    PK: tl.constexpr,
    BV: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    h = tl.program_id(0)
    col = tl.program_id(1) * BV + tl.arange(0, BV)
    i = tl.program_id(2)
    slot = tl.load(facts + 5 * i).to(tl.int64)
    start = tl.load(facts + 5 * i + 1)
    length = tl.load(facts + 5 * i + 2)
    end = length + tl.load(facts + 5 * i + 3)
    edge = tl.load(facts + 5 * i + 4)
    # nothing to do: no row is new and nothing folds
    chunks = tl.where((end > length) | (edge > start), tl.cdiv(end - start, C), 0)
    d = tl.arange(0, PK)
    r = tl.arange(0, C)
    inside = (d < DK)[None, :] & (col < DV)[:, None]
    at_s = d[None, :] * DV + col[:, None]
    # no kernel of this call writes the state: it is read while they still run
    s = tl.load(state + (slot * HV + h) * DK * DV + at_s, mask=inside, other=0.0)
    wait_before(PDL)
    for n in tl.range(0, chunks, num_stages=STAGES):
        first = start + n * C
        at = first + r
        chunk = i.to(tl.int64) * CHUNKS + n
        q, k, v = _load_rows(mixed, chunk, h, col, HK, HV, DK, DV, C, PK)
        g = gates + (chunk * 2 * HV + h) * C + r
        beta = tl.load(g)
        total = tl.load(g + HV * C)
        cc = kept + (chunk * HV + h) * 2 * C * C + r[:, None] * C + r[None, :]
        within = tl.load(cc)
        solve = tl.load(cc + C * C)
        rr = kept_r + (chunk * HV + h) * 2 * C + r
        rq = tl.load(rr)
        rk = tl.load(rr + C)
        o, delta = _advance(s, q, k, v, within, solve, rq, rk, beta, total)
        o_at = (
            out
            + ((i * T + at - length).to(tl.int64) * HV + h)[None, :] * DV
            + col[:, None]
        )
        live = ((at >= length) & (at < end))[None, :] & (col < DV)[:, None]
        tl.store(o_at, o.to(out.dtype.element_ty), mask=live)
        s = _fold(s, k, delta, rk, total, C)
        if first + C == edge:
            tl.store(
                folded + (i.to(tl.int64) * HV + h) * DK * DV + at_s, s, mask=inside
            )


@triton.jit
def relate_kernel(
    mixed,
    gates,
    kept,
    kept_r,
    facts,
    CHUNKS,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    C: tl.constexpr,
    PK: tl.constexpr,
    PDL: tl.constexpr,
):
    h = tl.program_id(0)
    n = tl.program_id(1)
    i = tl.program_id(2)
    start = tl.load(facts + 5 * i + 1)
    end = tl.load(facts + 5 * i + 2) + tl.load(facts + 5 * i + 3)
    release_next(PDL)
    wait_before(PDL)
    if start + n * C < end:
        r = tl.arange(0, C)
        chunk = i.to(tl.int64) * CHUNKS + n
        q, k, _ = _load_rows(mixed, chunk, h, tl.arange(0, 1), HK, HV, DK, DV, C, PK)
        g = gates + (chunk * 2 * HV + h) * C + r
        beta = tl.load(g)
        total = tl.load(g + HV * C)
        within, solve, rq, rk = _relate(q, k, beta, total, DK, C)
        cc = kept + (chunk * HV + h) * 2 * C * C + r[:, None] * C + r[None, :]
        tl.store(cc, within)
        tl.store(cc + C * C, solve)
        rr = kept_r + (chunk * HV + h) * 2 * C + r
        tl.store(rr, rq)
        tl.store(rr + C, rk)


def delta(
    plan: Any,
    layer: int,
    conv: Float[Tensor, "m taps"],
    speed: Float[Tensor, " h"],
    dt_bias: Float[Tensor, " h"],
    raw: Float[Tensor, "r c"],
    s: Float[Tensor, "layer slot h k v"],
    rows: Float[Tensor, "layer slot n c"],
) -> tuple[Float[Tensor, "r h v"], list[Tensor]]:
    """Run a layer's recurrence over the rows of a call, as the vector form does.

    Three launches for a token, a block or a prompt alike: rows (convolution and gates,
    all rows at once), what the rows of each chunk are to each other, and the scan
    from chunk to chunk, which reads each state once.

    Bytes: the states once, raw rows once in; convolved rows and two 16 x 16 matrices a
    chunk and head written and read.
    """
    batch = plan.batch
    requests = len(batch.slots)
    t, (channels, taps) = raw.shape[0] // requests, conv.shape
    heads, key_dim, value_dim = s.shape[2:]
    keys = (channels - heads * value_dim) // (2 * key_dim)
    out = (raw.new_empty if plan.full else raw.new_zeros)(len(raw), heads, value_dim)
    folds = [
        edge > start for edge, start in zip(batch.edges, batch.starts, strict=True)
    ]
    chunks = plan.chunks
    if chunks == 0:
        return out, [s[layer, slot] for slot in batch.slots]
    wide = raw.new_empty
    mixed = wide(requests, chunks, CHUNK, channels)
    fp32 = {"dtype": torch.float32}
    gates = wide(requests, chunks, 2, heads, CHUNK, **fp32)
    kept = wide(requests, chunks, heads, 2, CHUNK, CHUNK, **fp32)
    lengths = wide(requests, chunks, heads, 2, CHUNK, **fp32)
    folded = s.new_empty(requests if any(folds) else 0, *s.shape[2:])
    held = rows[layer]
    early = overlap(raw)
    rows_kernel[(triton.cdiv(channels, CHANNELS) + 1, chunks, requests)](
        held,
        raw,
        conv,
        speed,
        dt_bias,
        plan.facts,
        mixed,
        gates,
        held.stride(1),
        held.stride(0),
        raw.stride(0),
        t,
        chunks,
        *conv.stride(),
        HV=heads,
        PH=power(heads),
        CH=channels,
        C=CHUNK,
        TAPS=taps,
        BLOCK=CHANNELS,
        **early,
        **Launch(4, 1)._asdict(),
    )
    sizes = {
        "HK": keys,
        "HV": heads,
        "DK": key_dim,
        "DV": value_dim,
        "C": CHUNK,
        "PK": power(key_dim),
    }
    relate_kernel[(heads, chunks, requests)](
        mixed,
        gates,
        kept,
        lengths,
        plan.facts,
        chunks,
        **sizes,
        **early,
        **Launch(2, 1)._asdict(),
    )
    scan_kernel[(heads, triton.cdiv(value_dim, COLUMNS), requests)](
        mixed,
        gates,
        kept,
        lengths,
        s[layer],
        out,
        folded,
        plan.facts,
        t,
        chunks,
        **sizes,
        BV=COLUMNS,
        STAGES=2,
        **early,
        **Launch(1, 1)._asdict(),
    )
    ends = [
        folded[i] if fold else s[layer, slot]
        for i, (fold, slot) in enumerate(zip(folds, batch.slots, strict=True))
    ]
    return out, ends
