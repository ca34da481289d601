"""Device code of the delta rule's rows: convolution and gates."""

import triton
import triton.language as tl

from fspec.kernels.jit import release_next, wait_before


@triton.jit
def _raw(known, fresh, p, length, end, known_row, fresh_row, column, inside):
    """Raw rows at positions p: the state's below `length`, then the call's, then 0."""
    # two masked loads and not one through a chosen pointer: those stay 16 bytes wide
    old = p < length
    new = (p >= length) & (p < end)
    wide = p.to(tl.int64)[:, None]
    a = tl.load(
        known + wide * known_row + column[None, :],
        mask=inside[None, :] & old[:, None],
        other=0.0,
    )
    b = tl.load(
        fresh + wide * fresh_row + column[None, :],
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
    known_row,
    fresh_row,
    conv_channel,
    conv_tap,
    channel,
    CH: tl.constexpr,
    C: tl.constexpr,
    TAPS: tl.constexpr,
):
    """Convolve one chunk's rows of some channels, then silu, to the model's dtype."""
    inside = channel < CH
    total = tl.zeros([C, channel.shape[0]], tl.float32)
    for tap in tl.static_range(TAPS):
        x = _raw(
            known,
            fresh,
            at - (TAPS - 1) + tap,
            length,
            end,
            known_row,
            fresh_row,
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
    known_row,
    fresh_row,
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
    b = _raw(known, fresh, at, length, end, known_row, fresh_row, CH + h, inside)
    x = (
        _raw(known, fresh, at, length, end, known_row, fresh_row, CH + HV + h, inside)
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
    known_row,
    known_slot,
    fresh_row,
    rows_each,
    most_chunks,
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
    """Convolve and gate every row from the chunk's edge on; zeros behind the last."""
    part = tl.program_id(0)
    n = tl.program_id(1)
    i = tl.program_id(2)
    slot = tl.load(facts + 5 * i).to(tl.int64)
    start = tl.load(facts + 5 * i + 1)
    length = tl.load(facts + 5 * i + 2)
    end = length + tl.load(facts + 5 * i + 3)
    # index of position p in the state's rows is p - start + TAPS - 1
    known += slot * known_slot + (TAPS - 1 - start).to(tl.int64) * known_row
    fresh += (i * rows_each - length).to(tl.int64) * fresh_row
    chunk = i.to(tl.int64) * most_chunks + n
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
                known_row,
                fresh_row,
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
                known_row,
                fresh_row,
                HV,
                PH,
                CH,
                C,
            )
