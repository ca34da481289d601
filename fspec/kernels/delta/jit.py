"""Device code of the delta rule: relations within a chunk, and the scan."""

import triton
import triton.language as tl

from fspec.kernels.jit import release_next, wait_before


@triton.jit
def _head(x):
    """Cut an fp32 number: its upper half, which is a bf16, and the rest."""
    bits = x.to(tl.int32, bitcast=True)
    half = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return half, x - (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _split(x):
    """Cut x to three bf16 numbers of eight bits each; their sum is x, exactly."""
    high, rest = _head(x)
    middle, rest = _head(rest)
    low, _ = _head(rest)
    return high, middle, low


@triton.jit
def _small(a, b):
    """Multiply fp32 a by fp32 b: the products of their parts that fp32 can hold."""
    ah, am, al = _split(a)
    bh, bm, bl = _split(b)
    y = tl.dot(al, bh, tl.dot(am, bm, tl.dot(ah, bl)))
    return tl.dot(ah, bh, tl.dot(ah, bm, tl.dot(am, bh, y)))


@triton.jit
def _times(a, b):
    """Multiply a by b without rounding either: fp32 numbers in bf16 parts."""
    if b.dtype == tl.float32:
        y = _small(a, b)
    elif a.dtype == tl.float32:
        high, middle, low = _split(a)
        y = tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        y = tl.dot(a, b)
    return y


@triton.jit
def _solve(a, C: tl.constexpr):
    """Invert I + a for strictly lower a.

    Diagonal blocks of eight by powers, for d^8 = 0; powers of all sixteen would grow
    where neighbouring keys are alike.
    """
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
def _length(x, C: tl.constexpr):
    r = tl.arange(0, C)
    return tl.rsqrt(tl.sum(tl.where(r[:, None] == r[None, :], x, 0.0), 1) + 1e-6)


@triton.jit
def _relate(q, k, beta, total, DK: tl.constexpr, C: tl.constexpr):
    """Relate a chunk's rows: within and solve `[C, C]`, 1 / lengths of q and k.

    q and k are tuples of their column blocks, as everywhere below; so is the state.
    """
    r = tl.arange(0, C)
    kk = _times(k[0], tl.trans(k[0]))
    qq = _times(q[0], tl.trans(q[0]))
    qk = _times(q[0], tl.trans(k[0]))
    for c in tl.static_range(1, len(k)):
        kk += _times(k[c], tl.trans(k[c]))
        qq += _times(q[c], tl.trans(q[c]))
        qk += _times(q[c], tl.trans(k[c]))
    rk = _length(kk, C)
    rq = _length(qq, C) * (DK**-0.5)
    low = r[:, None] >= r[None, :]
    fade = tl.where(
        low, tl.exp(tl.where(low, total[:, None] - total[None, :], 0.0)), 0.0
    )
    fade = fade * rk[None, :]
    within = qk * fade * rq[:, None]
    mix = tl.where(r[:, None] > r[None, :], kk * fade * (beta * rk)[:, None], 0.0)
    return within, _solve(mix, C), rq, rk


@triton.jit
def _advance(s, q, k, v, within, solve, rq, rk, beta, total):
    """Outputs `[v, C]` and what the rows write, for s `[v, k]` and v `[v, C]`."""
    grown = tl.exp(total)
    predicted = _times(s[0], tl.trans(k[0]))
    carried = _times(s[0], tl.trans(q[0]))
    for c in tl.static_range(1, len(s)):
        predicted += _times(s[c], tl.trans(k[c]))
        carried += _times(s[c], tl.trans(q[c]))
    predicted = predicted * (grown * rk)[None, :]
    carried = carried * (grown * rq)[None, :]
    delta = _small(beta[None, :] * (v - predicted), tl.trans(solve))
    return carried + _small(delta, tl.trans(within)), delta


@triton.jit
def _fold(s, k, delta, rk, total, C: tl.constexpr):
    last = tl.sum(tl.where(tl.arange(0, C) == C - 1, total, 0.0), 0)
    left = delta * (rk * tl.exp(last - total))[None, :]
    out = ()
    for c in tl.static_range(len(s)):
        out = out + (s[c] * tl.exp(last) + _times(left, k[c]),)
    return out


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
    BK: tl.constexpr,
):
    CH: tl.constexpr = 2 * HK * DK + HV * DV
    r = tl.arange(0, C)
    row = mixed + (chunk * C + r) * CH
    q = ()
    k = ()
    for c in tl.static_range(PK // BK):
        d = c * BK + tl.arange(0, BK)
        at = row[:, None] + (h // (HV // HK)) * DK + d[None, :]
        q = q + (tl.load(at, mask=(d < DK)[None, :], other=0.0),)
        k = k + (tl.load(at + HK * DK, mask=(d < DK)[None, :], other=0.0),)
    v = tl.load(
        row[None, :] + 2 * HK * DK + h * DV + col[:, None],
        mask=(col < DV)[:, None],
        other=0.0,
    )
    return q, k, v.to(tl.float32)


@triton.jit
def _state_block(c, col, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr):
    d = c * BK + tl.arange(0, BK)
    inside = (d < DK)[None, :] & (col < DV)[:, None]
    return d[None, :] * DV + col[:, None], inside


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
    rows_each,
    most_chunks,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    C: tl.constexpr,
    PK: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Scan one value head and BV value dims of a request from chunk to chunk.

    Key dims are in blocks of BK: all of them, or as many as registers hold (Xe2).

    `facts` holds slot, start, length, count and edge of each request; the state at
    the edge goes to `folded`.
    """
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
    r = tl.arange(0, C)
    # no kernel of this call writes the state: it is read while they still run
    s = ()
    for c in tl.static_range(PK // BK):
        at_s, inside = _state_block(c, col, DK, DV, BK)
        s_at = state + (slot * HV + h) * DK * DV + at_s
        s = s + (tl.load(s_at, mask=inside, other=0.0),)
    wait_before(PDL)
    for n in tl.range(0, chunks, num_stages=STAGES):
        first = start + n * C
        at = first + r
        chunk = i.to(tl.int64) * most_chunks + n
        q, k, v = _load_rows(mixed, chunk, h, col, HK, HV, DK, DV, C, PK, BK)
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
            + ((i * rows_each + at - length).to(tl.int64) * HV + h)[None, :] * DV
            + col[:, None]
        )
        live = ((at >= length) & (at < end))[None, :] & (col < DV)[:, None]
        tl.store(o_at, o.to(out.dtype.element_ty), mask=live)
        s = _fold(s, k, delta, rk, total, C)
        if first + C == edge:
            for c in tl.static_range(PK // BK):
                at_s, inside = _state_block(c, col, DK, DV, BK)
                s_at = folded + (i.to(tl.int64) * HV + h) * DK * DV + at_s
                tl.store(s_at, s[c], mask=inside)


@triton.jit
def relate_kernel(
    mixed,
    gates,
    kept,
    kept_r,
    facts,
    most_chunks,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    C: tl.constexpr,
    PK: tl.constexpr,
    BK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Keep what one head's rows of one chunk are to each other."""
    h = tl.program_id(0)
    n = tl.program_id(1)
    i = tl.program_id(2)
    start = tl.load(facts + 5 * i + 1)
    end = tl.load(facts + 5 * i + 2) + tl.load(facts + 5 * i + 3)
    release_next(PDL)
    wait_before(PDL)
    if start + n * C < end:
        r = tl.arange(0, C)
        chunk = i.to(tl.int64) * most_chunks + n
        q, k, _ = _load_rows(
            mixed, chunk, h, tl.arange(0, 1), HK, HV, DK, DV, C, PK, BK
        )
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
