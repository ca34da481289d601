"""`commit`: block rows become state. The only way to a longer target state."""

import torch
from jaxtyping import Int
from torch import Tensor

from fspec.errors import ShapeError, StateError
from fspec.kernels.delta import CHUNK
from fspec.layers.decoder import TargetParams, Trunk
from fspec.state.deltanet import append_rows_
from fspec.state.pages import check_reserved, write_rows_
from fspec.state.target import TargetState, lengths, starts
from fspec.state.tree import copy, host
from fspec.types import Batch, Verdict


def commit(
    params: TargetParams,
    state: TargetState,
    verdict: Verdict,
    rows: Int[Tensor, " b"],
) -> TargetState:
    """Append the first `rows` rows of each request's verified block.

    Args:
        params: the target.
        state: the state that was verified; not written.
        verdict: of that state and a block.
        rows: 0…count rows for each request; 0 leaves it as it is.

    Returns:
        The state after those tokens, equal in every byte that counts to the one that
        running them singly gives.

    Raises:
        StateError: the verdict is of another state.
        ShapeError: `rows` is out of range.
        CapacityError: pages are missing or shared. Nothing has been changed then.
    """
    return commit_(params, copy(state), verdict, rows)


def commit_(
    params: TargetParams,
    state: TargetState,
    verdict: Verdict,
    rows: Int[Tensor, " b"],
) -> TargetState:
    """Do as `commit` in the memory of `state`, which the caller owns."""
    base = verdict_base(state)
    if not torch.equal(verdict.base, base):
        given, held = host(verdict.base.flatten()), host(base.flatten())
        raise StateError(
            f"a verdict on (slot, length, earlier length) {given} was given for a "
            f"state with {held}; commit it to the state that was verified"
        )
    counts, wanted = host(verdict.block.counts), host(rows)
    if len(wanted) != len(counts) or not all(
        0 <= r <= c for r, c in zip(wanted, counts, strict=False)
    ):
        raise ShapeError(
            f"commit of {wanted} rows was asked of blocks of {counts} rows; "
            "each must be between 0 and its block's rows"
        )
    recent = state.recent[state.slots]
    edges = [keep // CHUNK * CHUNK for keep in host(recent[:, 0])]
    batch = Batch(host(state.slots), lengths(state), wanted, edges, starts(state))
    _append_(params, state, batch, verdict)
    before = state.pages.length[state.slots]
    moved = torch.stack([before, recent[:, 0]], 1)
    recent = torch.where((rows > 0)[:, None], moved, recent)
    return _lengthen(state, before + rows, recent)


def verdict_base(state: TargetState) -> Int[Tensor, "b 3"]:
    """Name the state that a verdict belongs to: slots, lengths, earlier lengths."""
    slots = state.slots
    earlier = state.recent[slots, 0]
    return torch.stack([slots, state.pages.length[slots], earlier], 1)


def append_known_(
    params: TargetParams, state: TargetState, batch: Batch, out: Trunk
) -> TargetState:
    """Append a trunk's rows as known tokens: folded to the end, never taken back."""
    _append_(params, state, batch, out)
    counts = torch.tensor(batch.counts, device=state.slots.device)
    length = state.pages.length[state.slots] + counts
    recent = torch.where(
        (counts > 0)[:, None], length[:, None], state.recent[state.slots]
    )
    return _lengthen(state, length, recent)


def _append_(
    params: TargetParams, state: TargetState, batch: Batch, out: Trunk | Verdict
) -> None:
    for slot, length, r, *_ in zip(*batch, strict=True):
        check_reserved(state.pages, slot, length, length + r)
    history = params.config.conv - 1
    for i, (slot, length, r, edge, start) in enumerate(zip(*batch, strict=True)):
        if r:
            write_rows_(state.pages, slot, length, out.k[:, i, :r], out.v[:, i, :r])
            s, raw = [ends[i] for ends in out.s], out.raw[:, i, :r]
            held = history + length - start
            append_rows_(state.delta, slot, held, raw, s, start, edge)


def _lengthen(state: TargetState, length: Tensor, recent: Tensor) -> TargetState:
    at = (state.slots,)
    return state._replace(
        pages=state.pages._replace(length=state.pages.length.index_put(at, length)),
        recent=state.recent.index_put(at, recent),
    )
