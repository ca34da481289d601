"""`accept`: which drafts the target agrees with, and where generation ends."""

import torch
from torch import Tensor

from fspec.types import Acceptance, SamplingState, Verdict


def accept(verdict: Verdict, sampling: SamplingState) -> Acceptance:
    """Keep the longest run of drafts that equal the target's greedy choice.

    A block `[boundary, d1 … dw]` with `a` accepted drafts gives the new tokens
    `d1 … da` and the target's own choice after `da`; all of them are the target's
    choices. They end early at the first stop id or when none remains to be emitted.
    With r new tokens, r block rows are to be committed: boundary and the first r − 1
    drafts. The last new token is the next boundary; it has not been run.

    Args:
        verdict: the target's word on the block.
        sampling: stop ids and how many tokens each request may still emit.

    Returns:
        `accepted` is counted before any stop cut. Inactive requests have no rows.
    """
    block, choice = verdict.block, verdict.choice
    row = torch.arange(choice.shape[1], device=choice.device)
    drafts = block.tokens[:, 1:]
    agreed = (drafts == choice[:, :-1]) & (row[1:] < block.counts[:, None])
    accepted = agreed.long().cumprod(1).sum(1)
    active = block.counts > 0
    ends = (choice[..., None] == sampling.stop_ids[:, None]).any(-1)
    ends = ends | (row + 1 >= sampling.remaining[:, None])
    within = ends & (row <= accepted[:, None])
    finished = within.any(1)
    last = torch.where(finished, within.long().argmax(1), accepted)
    rows = torch.where(active, last + 1, 0)
    tokens = torch.where(row < rows[:, None], choice, -1)
    boundary = choice.gather(1, last[:, None])[:, 0]
    boundary = torch.where(active, boundary, block.tokens[:, 0])
    return Acceptance(accepted * active, tokens, rows, boundary, finished | ~active)


def commit_sampling(sampling: SamplingState, acceptance: Acceptance) -> SamplingState:
    """Count emitted tokens and used context; a finished request has none remaining."""
    remaining = (sampling.remaining - acceptance.rows).masked_fill(
        acceptance.finished, 0
    )
    return sampling._replace(remaining=remaining, room=sampling.room - acceptance.rows)


def greedy(
    batch: int,
    *,
    width: int,
    max_tokens: int,
    room: int,
    stop_ids: tuple[int, ...] = (),
    like: Tensor | None = None,
) -> SamplingState:
    """Make the sampling state of `batch` equal greedy requests.

    Args:
        batch: requests.
        width: most drafts a cycle for each.
        max_tokens: tokens each may emit.
        room: block rows that fit behind the committed tokens.
        stop_ids: ids that end a request; the id itself is emitted.
        like: a tensor of the device to use; the CPU where it is None.
    """
    device = None if like is None else like.device

    def each(number: int) -> Tensor:
        return torch.full((batch,), number, device=device)

    stops = torch.tensor(stop_ids or (-1,), device=device).expand(batch, -1)
    return SamplingState(each(width), each(max_tokens), each(room), stops)
