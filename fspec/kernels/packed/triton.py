"""The W4A16 product on a GPU: the dense product of the weight that the codes stand for.

The weight is rounded to bf16 as `dequantize` rounds it, so a code's arithmetic is the
dense one's. Its sum is cut into parts of a length fixed by the weight's sizes, each
summed in ascending order and added up in order: few outputs alone would not keep the
memory busy. Few rows decode the weight as they read it; many rows write it out first.
"""

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.backend import Launch, overlap
from fspec.kernels.packed.jit import dequantize_kernel, packed_kernel, sum_kernel
from fspec.kernels.packed.layout import INNER, OUTER, Packed
from fspec.kernels.product.triton import choose_tile, run_tile

FEW = 16  # rows that the fused kernel takes
MOST_PARTS = 8
PROGRAMS = 640  # least programs of a launch, where the weight has as many


def part_blocks(w: Packed) -> int:
    """Blocks of 128 inputs in one part of the sum: fixed by the weight's sizes."""
    tiles, blocks = w.words.shape[:2]
    parts = 1
    while parts < MOST_PARTS and tiles * parts < PROGRAMS and blocks >= 8 * parts:
        parts *= 2
    return triton.cdiv(blocks, parts)


def dequantize(w: Packed) -> Float[Tensor, "i o"]:
    """Write out the weight; bytes: the codes in, two a weight out."""
    dense = w.scale.new_empty(w.outer, w.inner)
    tiles, blocks = w.words.shape[:2]
    dequantize_kernel[(tiles, blocks)](
        w.words,
        w.scale,
        w.scale if w.zero is None else w.zero,
        dense,
        w.inner,
        w.outer,
        blocks,
        w.scale.stride(0),
        OUTER=OUTER,
        GROUP=w.group,
        ASYM=w.zero is not None,
        **Launch()._asdict(),
    )
    return dense.t()


def product(x: Float[Tensor, "r i"], w: Packed) -> Float[Tensor, "r o"]:
    """Multiply rows by a packed weight.

    Bytes: half a byte a weight and its scales for up to 16 rows; for more, the weight
    is written and read once more in bf16.
    """
    if x.stride(-1) != 1:
        x = x.contiguous()
    rows = x.shape[0]
    each = part_blocks(w)
    out = x.new_empty(rows, w.outer)
    if rows > FEW or x.dtype != torch.bfloat16:
        tile = choose_tile(rows, w.outer, x)
        run_tile(x, dequantize(w), tile, out, each * INNER)
        return out
    tiles, blocks = w.words.shape[:2]
    parts = triton.cdiv(blocks, each)
    work = out if parts == 1 else x.new_empty(parts, *out.shape, dtype=torch.float32)
    cuda = x.is_cuda
    packed_kernel[(triton.cdiv(rows, 8), tiles, parts)](
        x,
        w.words,
        w.scale,
        w.scale if w.zero is None else w.zero,
        work,
        rows,
        w.inner,
        w.outer,
        x.stride(0),
        blocks,
        each,
        w.scale.stride(0),
        ROWS=8,
        OUTER=OUTER,
        GROUP=w.group,
        ASYM=w.zero is not None,
        EVEN=w.inner % INNER == 0,
        ASM=cuda,
        SWAP=cuda,
        PDL=cuda,
        **(Launch(2, 3) if cuda else Launch(4, 1))._asdict(),
    )
    if parts > 1:
        span = out.numel()
        sum_kernel[(triton.cdiv(span, 512),)](
            work,
            out,
            span,
            parts,
            BLOCK=512,
            **overlap(x),
            **Launch()._asdict(),
        )
    return out
