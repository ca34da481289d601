"""Device code of attention: edges, tiles of keys, and the joining of splits."""

import triton
import triton.language as tl

from fspec.kernels.jit import release_next, wait_before


@triton.jit
def edge_kernel(
    fresh_k,
    fresh_v,
    keys,
    values,
    table,
    facts,
    edge_k,
    edge_v,
    layer_row,
    k_row,
    v_row,
    table_row,
    rows_each,
    SIZE: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    PD: tl.constexpr,
    KT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows of one tile and head from the tile of `length` on; zeros behind the last."""
    e = tl.program_id(0)
    h = tl.program_id(1)
    i = tl.program_id(2)
    slot = tl.load(facts + 5 * i)
    length = tl.load(facts + 5 * i + 2)
    end = length + tl.load(facts + 5 * i + 3)
    r = tl.arange(0, KT)
    d = tl.arange(0, PD)
    at = length // KT * KT + e * KT + r
    inside = (d < D)[None, :]
    old = (at < length)[:, None] & inside
    new = ((at >= length) & (at < end))[:, None] & inside
    # q is older than this launch: released here, the next one may read it
    wait_before(PDL)
    release_next(PDL)
    page = tl.load(table + slot.to(tl.int64) * table_row + at // SIZE, mask=at < length)
    page_row = layer_row + page.to(tl.int64) * SIZE + at % SIZE
    held = page_row[:, None] * (KV * D) + h * D + d[None, :]
    row = (i * rows_each + at - length).to(tl.int64)[:, None]
    column = h * D + d[None, :]
    out = (i * tl.num_programs(0) * KT + e * KT + r).to(tl.int64)[:, None]
    out = out * (KV * D) + column
    k = tl.load(fresh_k + row * k_row + column, mask=new, other=0.0)
    k = tl.where(old, tl.load(keys + held, mask=old, other=0.0), k)
    tl.store(edge_k + out, k, mask=inside)
    v = tl.load(fresh_v + row * v_row + column, mask=new, other=0.0)
    v = tl.where(old, tl.load(values + held, mask=old, other=0.0), v)
    tl.store(edge_v + out, v, mask=inside)


@triton.jit
def _tile(
    q, k, v, seen, top, total, acc, scale, MASK: tl.constexpr, PRECISION: tl.constexpr
):
    """Add one tile of keys to the running maximum, sum and values.

    q and k are tuples of their column blocks.
    """
    s = tl.dot(q[0], tl.trans(k[0]), input_precision=PRECISION)
    for c in tl.static_range(1, len(q)):
        s = tl.dot(q[c], tl.trans(k[c]), s, input_precision=PRECISION)
    if MASK:
        s = tl.where(seen, s, -1.0e30)
    best = tl.maximum(top, tl.max(s, 1))
    p = tl.exp2((s - best[:, None]) * scale)
    if MASK:
        # a row that sees nothing yet has best = -1e30, and exp2(0) there
        p = tl.where(seen, p, 0.0)
    fade = tl.exp2((top - best) * scale)
    total = total * fade + tl.sum(p, 1)
    acc = acc * fade[:, None]
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return best, total, acc


@triton.jit
def _blocks(first, live, D: tl.constexpr, PD: tl.constexpr, BD: tl.constexpr):
    """Load rows that begin at pointers `[rows, 1]`, in a tuple of BD columns each."""
    out = ()
    for c in tl.static_range(PD // BD):
        d = c * BD + tl.arange(0, BD)
        if live is None:
            inside = (d < D)[None, :]
        else:
            inside = live[:, None] & (d < D)[None, :]
        out = out + (tl.load(first + d[None, :], mask=inside, other=0.0),)
    return out


@triton.jit
def _load(
    keys,
    values,
    row,
    h,
    d,
    KV: tl.constexpr,
    D: tl.constexpr,
    PD: tl.constexpr,
    BD: tl.constexpr,
):
    """Load keys at rows, every column of them, and values, columns d of them."""
    at = row[:, None] * (KV * D) + h * D
    k = _blocks(keys + at, None, D, PD, BD)
    v = tl.load(values + at + d[None, :], mask=(d < D)[None, :], other=0.0)
    return k, v


@triton.jit(do_not_specialize=["layer_row", "edge_rows"])
def attend_kernel(
    q,
    edge_k,
    edge_v,
    keys,
    values,
    table,
    facts,
    tiles,
    part,
    part_top,
    part_total,
    layer_row,
    edge_rows,
    q_row,
    table_row,
    scale,
    SIZE: tl.constexpr,
    G: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    PD: tl.constexpr,
    QT: tl.constexpr,
    KT: tl.constexpr,
    BD: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile of rows, one key head, one split of the keys, to partial results.

    BD columns of the values: where those are not all, neighbours repeat the scores.
    """
    n = tl.program_id(0) // (PD // BD)
    sid = tl.program_id(1)
    h = tl.program_id(2)
    i = tl.load(tiles + 5 * n)
    p0 = tl.load(tiles + 5 * n + 1)
    place = tl.load(tiles + 5 * n + 2)
    rows = tl.load(tiles + 5 * n + 3)
    split = tl.load(tiles + 5 * n + 4)
    slot = tl.load(facts + 5 * i)
    base = tl.load(facts + 5 * i + 2) // KT * KT
    lo = sid * split
    hi = tl.maximum(tl.minimum(lo + split, p0 + rows), lo)
    rr = tl.arange(0, QT)
    d = tl.program_id(0) % (PD // BD) * BD + tl.arange(0, BD)
    tt = tl.arange(0, KT)
    row = rr // G
    live = row < tl.where(lo < hi, rows, 0)
    head_at = (h * G + rr % G) * D
    q_at = (place + row).to(tl.int64) * q_row + head_at
    qv = _blocks(q + q_at[:, None], live, D, PD, BD)
    top = tl.full([QT], -1.0e30, tl.float32)
    total = tl.zeros([QT], tl.float32)
    acc = tl.zeros([QT, BD], tl.float32)
    pages = table + slot.to(tl.int64) * table_row
    # tiles wholly below the new rows
    paged = tl.maximum(tl.minimum(base, hi), lo)
    page = tl.load(pages + lo // SIZE, mask=lo < paged, other=0)
    for t in range(lo, paged, KT):
        if TMA:
            at = (layer_row + page * SIZE + t % SIZE).to(tl.int32)
            k = (keys.load([at, h * D]),)
            v = values.load([at, h * D])
            page = tl.load(pages + (t + KT) // SIZE, mask=t + KT < paged, other=0)
        else:
            ids = tl.load(pages + (t + tt) // SIZE)
            at = layer_row + ids.to(tl.int64) * SIZE + (t + tt) % SIZE
            k, v = _load(keys, values, at, h, d, KV, D, PD, BD)
        top, total, acc = _tile(
            qv, k, v, live, top, total, acc, scale, False, PRECISION
        )
    wait_before(PDL)
    # not before the pages are read: the next launch would take room from this one
    release_next(PDL)
    # then those that every row sees whole, and those it does not
    whole = tl.maximum(tl.minimum((p0 + 1) // KT * KT, hi), paged)
    edge = i * edge_rows - base
    for t in range(paged, whole, KT):
        if TMA:
            k = (edge_k.load([edge + t, h * D]),)
            v = edge_v.load([edge + t, h * D])
        else:
            k, v = _load(
                edge_k, edge_v, (edge + t + tt).to(tl.int64), h, d, KV, D, PD, BD
            )
        top, total, acc = _tile(
            qv, k, v, live, top, total, acc, scale, False, PRECISION
        )
    for t in range(whole, hi, KT):
        if TMA:
            k = (edge_k.load([edge + t, h * D]),)
            v = edge_v.load([edge + t, h * D])
        else:
            k, v = _load(
                edge_k, edge_v, (edge + t + tt).to(tl.int64), h, d, KV, D, PD, BD
            )
        seen = live[:, None] & ((t + tt)[None, :] <= (p0 + row)[:, None])
        top, total, acc = _tile(qv, k, v, seen, top, total, acc, scale, True, PRECISION)
    at = (sid.to(tl.int64) * (tl.num_programs(0) // (PD // BD)) + n) * KV + h
    at = at * QT + rr
    tl.store(part + at[:, None] * PD + d[None, :], acc, mask=live[:, None])
    tl.store(part_top + at, top, mask=live)
    tl.store(part_total + at, total, mask=live)


@triton.jit(do_not_specialize=["count"])
def merge_kernel(
    part,
    part_top,
    part_total,
    tiles,
    out,
    scale,
    count,
    G: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    PD: tl.constexpr,
    QT: tl.constexpr,
    BD: tl.constexpr,
    BS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Join the splits of one row and head, BS at a time, in order."""
    n = tl.program_id(0)
    rr = tl.program_id(1)
    h = tl.program_id(2) // (PD // BD)
    d = (tl.program_id(2) % (PD // BD)) * BD + tl.arange(0, BD)
    p0 = tl.load(tiles + 5 * n + 1)
    place = tl.load(tiles + 5 * n + 2)
    rows = tl.load(tiles + 5 * n + 3)
    split = tl.load(tiles + 5 * n + 4)
    row = rr // G
    splits = tl.where(row < rows, (p0 + row) // split + 1, 0)
    wait_before(PDL)
    top = tl.full([1], -1.0e30, tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([1, BD], tl.float32)
    b = tl.arange(0, BS)
    for first in range(0, splits, BS):
        live = first + b < splits
        at = (((first + b).to(tl.int64) * count + n) * KV + h) * QT + rr
        m = tl.load(part_top + at, mask=live, other=-1.0e30)
        each = tl.load(part_total + at, mask=live, other=0.0)
        x_at = part + at[:, None] * PD + d[None, :]
        x = tl.load(x_at, mask=live[:, None], other=0.0)
        best = tl.maximum(top, tl.max(m, 0, keep_dims=True))
        fade = tl.exp2((top - best) * scale)
        weight = tl.exp2((m - best) * scale)
        total = total * fade + tl.sum(weight * each, 0, keep_dims=True)
        acc = acc * fade[:, None] + tl.sum(x * weight[:, None], 0, keep_dims=True)
        top = best
    at = (place + row).to(tl.int64) * KV * G + h * G + rr % G
    total = tl.where(row < rows, total, 1.0)
    y = (acc / total[:, None]).to(out.dtype.element_ty)
    keep = (d < tl.where(row < rows, D, 0))[None, :]
    tl.store(out + at * D + d[None, :], y, mask=keep)
