"""The delta rule on a GPU: raw rows in, outputs out, chunks at absolute positions."""

from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, overlap, power
from fspec.kernels.delta.jit import relate_kernel, scan_kernel
from fspec.kernels.delta.jit_rows import rows_kernel

CHUNK = 16
CHANNELS = 64  # of a program that convolves
SHORT = 16  # chunks of a call whose launches overlap


class Cut(NamedTuple):
    """How a device's registers are shared: sizes, and warps of a program.

    columns: value dims of a program that scans.
    block: key dims that are in registers at once, at most.
    """

    columns: int
    block: int
    relate_warps: int
    scan_warps: int


CUDA = Cut(16, 1 << 62, 2, 1)
XPU = Cut(64, 16, 4, 8)  # that spill no register (`make xpu-check`)


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
        count > 0 and edge > start
        for _, _, count, edge, start in zip(*batch, strict=True)
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
    # a few chunks are over before a launch is; many would wait for room
    short = requests * chunks <= SHORT
    early = overlap(raw, short)
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
    cut = CUDA if raw.is_cuda else XPU
    sizes = {
        "HK": keys,
        "HV": heads,
        "DK": key_dim,
        "DV": value_dim,
        "C": CHUNK,
        "PK": power(key_dim),
        "BK": min(power(key_dim), cut.block),
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
        **Launch(cut.relate_warps, 1)._asdict(),
    )
    scan_kernel[(heads, triton.cdiv(value_dim, cut.columns), requests)](
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
        BV=cut.columns,
        STAGES=1 if short else 2,
        **early,
        **Launch(cut.scan_warps, 1)._asdict(),
    )
    ends = [
        folded[i] if fold else s[layer, slot]
        for i, (fold, slot) in enumerate(zip(folds, batch.slots, strict=True))
    ]
    return out, ends
