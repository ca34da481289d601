"""The head on a GPU: logits stay in registers, the greatest of each tile leave."""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from fspec.kernels.backend import Launch
from fspec.kernels.product.triton import (
    Tile,
    choose_tile,
    loader,
    tile_arguments,
)
from fspec.kernels.vocab.jit import head_kernel, keys_kernel, logits_kernel

# what one program searches, and its warps: the fastest of those tried on an H200
LOGITS, LOGITS_LAUNCH = 2048, Launch(2)
KEYS, KEYS_LAUNCH = 2048, Launch(4)


def _head(
    hidden: Float[Tensor, "r d"], w: Float[Tensor, "d n"], count: int
) -> Int[Tensor, "r m"]:
    if hidden.stride(-1) != 1:
        hidden = hidden.contiguous()
    rows, outer = hidden.shape[0], w.shape[1]
    tile = choose_tile(min(rows, 16), outer, hidden)
    if not tile.swap:
        tile = Tile(tile.rows, min(tile.outer, 64), *tile[2:])
    tiles = triton.cdiv(outer, tile.outer)
    best = hidden.new_empty(rows, tiles * count, dtype=torch.int64)
    numbers, options = tile_arguments(hidden, w, tile, None)
    head_kernel[(triton.cdiv(rows, tile.rows), tiles)](
        hidden, loader(w, tile), best, *numbers, COUNT=count, **options
    )
    return _reduce(best, count)


def _reduce(best: Int[Tensor, "r m"], count: int) -> Int[Tensor, "r count"]:
    rows, keys = best.shape
    while keys > count:
        blocks = triton.cdiv(keys, KEYS)
        less = best.new_empty(rows, blocks * count)
        keys_kernel[(blocks, rows)](
            best, less, keys, BLOCK=KEYS, COUNT=count, **KEYS_LAUNCH._asdict()
        )
        best, keys = less, blocks * count
    return best


def _values(best: Int[Tensor, "r c"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    order = best >> 32
    bits = torch.where(order < 0, order ^ 0x7FFFFFFF, order).to(torch.int32)
    return bits.view(torch.float32).to(dtype), 0x7FFFFFFF - (best & 0xFFFFFFFF)


def argmax(hidden: Float[Tensor, "r d"], w: Float[Tensor, "d n"]) -> Int[Tensor, " r"]:
    """Id of each row's greatest logit, the lowest of equals; bytes: the head once."""
    return 0x7FFFFFFF - (_head(hidden, w, 1)[:, 0] & 0xFFFFFFFF)


def top(
    hidden: Float[Tensor, "r d"], w: Float[Tensor, "d n"], count: int
) -> tuple[Float[Tensor, "r c"], Int[Tensor, "r c"]]:
    """Greatest logits and their ids, the lowest first of equals."""
    return _values(_head(hidden, w, min(count, w.shape[1])), hidden.dtype)


def top_logits(
    logits: Float[Tensor, "r n"], count: int
) -> tuple[Float[Tensor, "r c"], Int[Tensor, "r c"]]:
    """Do as `top` on logits that were written out; bytes: the logits once."""
    rows, outer = logits.shape
    count = min(count, outer)
    blocks = triton.cdiv(outer, LOGITS)
    best = logits.new_empty(rows, blocks * count, dtype=torch.int64)
    logits_kernel[(blocks, rows)](
        logits.contiguous(),
        best,
        outer,
        BLOCK=LOGITS,
        COUNT=count,
        **LOGITS_LAUNCH._asdict(),
    )
    return _values(_reduce(best, count), logits.dtype)
