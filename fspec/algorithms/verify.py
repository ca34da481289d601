"""`verify` and `extend`: the target's one forward pass, read-only and appending."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fspec.algorithms.commit import append_known_, verdict_base
from fspec.errors import ShapeError
from fspec.kernels.delta import CHUNK
from fspec.layers.decoder import TargetParams, head, trunk
from fspec.state.target import TargetState, lengths, starts, widest
from fspec.state.tree import copy, host
from fspec.types import Batch, Block, Proposal, SamplingState, Verdict


def form_block(
    boundary: Int[Tensor, " b"], proposal: Proposal, sampling: SamplingState
) -> Block:
    """Put the boundary in front of the drafts; finished requests get no rows."""
    tokens = torch.cat([boundary[:, None], proposal.tokens], 1)
    active = (sampling.remaining > 0) & (sampling.room > 0)
    return Block(tokens, torch.where(active, proposal.widths + 1, 0))


def verify(
    params: TargetParams,
    state: TargetState,
    block: Block,
    taps: tuple[int, ...] = (),
    logits: bool = True,
) -> Verdict:
    """Run the target over a block; nothing is written anywhere.

    Args:
        params: the target.
        state: what is committed.
        block: boundary and drafts of each request; at positions L…L+w.
        taps: target layers whose output becomes a feature, in the order given.
        logits: whether they are wanted; the choice is the same without them.

    Returns:
        The target's word on every row, and the rows that a commit would append.

    Raises:
        ShapeError: the block has another batch than the state, more rows than the
            state was made for, or ids outside the vocabulary.
    """
    counts = _check(params, state, block, taps)
    most = widest(state, params.config.conv, CHUNK) + 1
    if max(counts) > most:
        raise ShapeError(
            f"a block of {max(counts)} rows was given; this state was made for up to "
            f"{most} (width {most - 1}). Use fewer drafts or a state of a larger width"
        )
    # what the commit may fold: chunks that no later cut will reach
    edges = [keep // CHUNK * CHUNK for keep in host(state.recent[state.slots, 0])]
    batch = Batch(host(state.slots), lengths(state), counts, edges, starts(state))
    out = trunk(params, state, batch, block.tokens, taps)
    if logits:
        words = head(params, out.hidden)
        # argmax returns the first of equal maxima: the lowest id
        choice = words.argmax(-1)
    else:
        words = None
        flat = params.kernels.argmax(out.hidden.flatten(0, 1), params.head)
        choice = flat.view(block.tokens.shape)
    return Verdict(
        block,
        words,
        choice,
        out.hidden,
        out.features,
        out.k,
        out.v,
        out.raw,
        out.s,
        verdict_base(state),
    )


def extend(
    params: TargetParams,
    state: TargetState,
    tokens: Int[Tensor, "b t"],
    taps: tuple[int, ...] = (),
    counts: Int[Tensor, " b"] | None = None,
) -> tuple[TargetState, Float[Tensor, "b t d"], Float[Tensor, "b t f"]]:
    """Append known tokens, such as a chunk of a prompt; chunks of any size.

    Args:
        params: the target.
        state: not written.
        tokens: ids that follow the committed ones.
        taps: as in `verify`.
        counts: how many of each row's tokens are real; all where it is None.

    Returns:
        The longer state, the hidden rows after the final norm, and the features.
        Known tokens are never taken back: a cut does not reach below them.

    Raises:
        ShapeError: the batch differs from the state's, or an id is outside the
            vocabulary.
        CapacityError: pages are missing; nothing has been changed.
    """
    return extend_(params, copy(state), tokens, taps, counts)


def extend_(
    params: TargetParams,
    state: TargetState,
    tokens: Int[Tensor, "b t"],
    taps: tuple[int, ...] = (),
    counts: Int[Tensor, " b"] | None = None,
) -> tuple[TargetState, Float[Tensor, "b t d"], Float[Tensor, "b t f"]]:
    """Do as `extend` in the memory of `state`, which the caller owns."""
    if counts is None:
        counts = tokens.new_full((tokens.shape[0],), tokens.shape[1])
    host_counts = _check(params, state, Block(tokens, counts), taps)
    before = lengths(state)
    edges = [
        (length + count) // CHUNK * CHUNK
        for length, count in zip(before, host_counts, strict=True)
    ]
    batch = Batch(host(state.slots), before, host_counts, edges, starts(state))
    out = trunk(params, state, batch, tokens, taps)
    return append_known_(params, state, batch, out), out.hidden, out.features


def _check(
    params: TargetParams, state: TargetState, block: Block, taps: tuple[int, ...]
) -> list[int]:
    b, t = block.tokens.shape
    counts = host(block.counts)
    if t == 0:
        raise ShapeError("no tokens were given; a block or chunk has at least one row")
    if b != state.slots.shape[0] or len(counts) != b:
        raise ShapeError(
            f"tokens of {b} requests and {len(counts)} counts were given to a state "
            f"of {state.slots.shape[0]} batch rows; the three must agree"
        )
    slots, most = host(state.slots), state.recent.shape[0]
    if len(set(slots)) < b or not all(0 <= slot < most for slot in slots):
        raise ShapeError(
            f"slots {slots} were given; a batch takes different ones of 0…{most - 1}"
        )
    if not counts or min(counts) < 0 or max(counts) > t:
        raise ShapeError(f"counts {counts} were given for rows of {t} tokens")
    low, high = block.tokens.aminmax() if block.tokens.numel() else (0, 0)
    if low < 0 or high >= params.config.vocab:
        raise ShapeError(
            f"token ids {int(low)}…{int(high)} were given; this target's are "
            f"0…{params.config.vocab - 1}"
        )
    layers = len(params.layers)
    if not all(0 <= tap < layers for tap in taps):
        raise ShapeError(f"taps {taps} were given; layers are 0…{layers - 1}")
    return counts
