"""Wrong kernels for the row law: each makes a row's bits depend on its company.

The first five replace functions of the CPU's kernels; the others wrap a kernel of any
record and name what is the GPU's own only when they run.
"""

import importlib
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F

from fspec.kernels.delta import CHUNK
from fspec.kernels.packed import Packed, dequantize
from fspec.types import Batch

SHIFT = 5  # no multiple of a chunk
BLOCK = 16  # most rows of a block


def plain_product(right):
    return lambda x, w: x @ w


def library_sum(right):
    def attend(q, start, keys, values):
        n = start + q.shape[0]
        seen = torch.arange(n) <= torch.arange(start, n)[:, None]
        group = q.shape[1] // keys.shape[2]
        rows = (x.flatten(0, 1)[:n].transpose(0, 1) for x in (keys, values))
        k, v = (x.repeat_interleave(group, 0) for x in rows)
        return F.scaled_dot_product_attention(
            q.float().transpose(0, 1), k, v, attn_mask=seen
        ).transpose(0, 1)

    return attend


def recur_later(right):
    # chunks that start at the call's first row, not at absolute multiples
    def scan(s, q, k, v, beta, decay, fold):
        shift = 3 if q.shape[0] > 3 else 0
        if not shift:
            return right(s, q, k, v, beta, decay, fold)
        parts = [x[:shift] for x in (q, k, v, beta, decay)]
        zeros = [F.pad(x, (0,) * (2 * x.dim() - 1) + (CHUNK - shift,)) for x in parts]
        _, middle = right(s, *zeros, CHUNK)
        first, _ = right(s, *parts, 0)
        rest, _ = right(middle, *(x[shift:] for x in (q, k, v, beta, decay)), 0)
        return torch.cat([first, rest]), right(s, q, k, v, beta, decay, fold)[1]

    return scan


def rounded_beta(right):
    # seen elsewhere: one path takes beta through bf16, another does not
    def gates(speed, dt_bias, beta, decay):
        strength, fade = right(speed, dt_bias, beta, decay)
        short = beta.shape[0] <= CHUNK // 2
        return strength.bfloat16().float() if short else strength, fade

    return gates


def library_silu(right):
    return lambda x: F.silu(x.float())


def chunks_of_the_call(right):
    """Delta whose chunk edges lie elsewhere in calls of several rows.

    Rows that do nothing stand in front: strength 0, no decay. The last of them keep
    their channels, so that the convolution sees its history.
    """

    def delta(plan, layer, conv, speed, dt_bias, raw, s, rows):
        rates = speed, dt_bias
        mixed, ends = right(plan, layer, conv, *rates, raw, s, rows)
        batch = plan if isinstance(plan, Batch) else plan.batch
        if len(raw) == len(batch.slots):
            return mixed, ends
        held = F.pad(rows[layer : layer + 1], (0, 0, SHIFT, 0))
        held[:, :, : conv.shape[1] - 1 + SHIFT, conv.shape[0] :] = -1e4
        moved = _moved(plan, batch)
        return right(moved, 0, conv, *rates, raw, s[layer : layer + 1], held)[0], ends

    return delta


def _moved(plan: Any, batch: Batch) -> Any:
    starts = [start - SHIFT for start in batch.starts]
    batch = batch._replace(starts=starts, edges=starts)
    if isinstance(plan, Batch):
        return batch
    facts = plan.facts.clone()
    facts[:, 1] -= SHIFT
    facts[:, 4] = facts[:, 1]
    return plan._replace(batch=batch, facts=facts, chunks=plan.chunks + 1)


def other_splits(right):
    """Plan whose attention splits are short in calls of several rows."""

    def plan(batch, t, *rest):
        if t == 1:
            return right(batch, t, *rest)
        module = importlib.import_module("fspec.kernels.plan")
        with mock.patch.object(module, "RANGES", ((1 << 62, 64),)):
            return right(batch, t, *rest)

    return plan


def library_product(right):
    """Product that leaves a block's rows to the library, as one row never is."""

    def product(x, w):
        if not 1 < len(x) <= BLOCK:
            return right(x, w)
        return x @ (dequantize(w) if isinstance(w, Packed) else w)

    return product


def two_sums(right):
    """Product of a Triton tile that cuts its sum in two where rows are few."""

    def product(x, w):
        if not 1 < len(x) <= BLOCK or isinstance(w, Packed):
            return right(x, w)
        module = importlib.import_module("fspec.kernels.product.triton")
        x, (inner, outer) = x.contiguous(), w.shape
        out = x.new_empty(len(x), outer)
        tile = module.choose_tile(len(x), outer, x)
        module.run_tile(x, w, tile, out, part=inner // 2)
        return out

    return product
