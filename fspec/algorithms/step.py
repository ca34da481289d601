"""`compose`: propose, verify, accept, commit and absorb make a step.

This is the whole of speculative decoding. Everything else in fspec is one of the five
functions, a state, or somebody who calls `step`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor

from fspec.algorithms.accept import accept, commit_sampling
from fspec.algorithms.commit import commit, commit_
from fspec.algorithms.verify import extend, extend_, form_block, verify
from fspec.errors import CapacityError
from fspec.state.tree import Owned, host
from fspec.types import Acceptance, Committed, Drafter, Info, SamplingState, Verdict


class DecodeState(NamedTuple):
    """What decoding carries from step to step.

    target, drafter: their states after the same committed tokens.
    boundary: int64 `[b]`, the newest token of each request, not yet run.
    sampling: what decides acceptance and the end.
    """

    target: Any
    drafter: Any
    boundary: Tensor
    sampling: SamplingState


class Step(NamedTuple):
    """A drafter composed with the target.

    prefill: `(params, state, tokens, counts) -> (state, hidden)`, known tokens.
    step: `(params, state) -> (state, Info)`, one cycle.
    prefill_, step_: the same on an `Owned` state, which they consume.
    """

    prefill: Callable[..., tuple[DecodeState, Tensor]]
    step: Callable[..., tuple[DecodeState, Info]]
    prefill_: Callable[..., tuple[Owned[DecodeState], Tensor]]
    step_: Callable[..., tuple[Owned[DecodeState], Info]]


def compose(drafter: Drafter) -> Step:
    """Compose the functions of a drafter and the target to steps.

    One code for all: a drafter of width 0 gives sequential decoding.
    """

    def cycle(
        params: Any, state: DecodeState, commit: Any, absorb: Any
    ) -> tuple[DecodeState, Info]:
        target, draft, boundary, sampling = state
        proposal = drafter.propose(params, draft, boundary, sampling)
        block = form_block(boundary, proposal, sampling)
        verdict = verify(params, target, block, drafter.taps, logits=False)
        acceptance = accept(verdict, sampling)
        target = commit(params, target, verdict, acceptance.rows)
        draft = absorb(params, draft, committed(verdict, acceptance))
        after = DecodeState(
            target,
            draft,
            acceptance.boundary,
            commit_sampling(sampling, acceptance),
        )
        accepted, tokens, rows, _, finished = acceptance
        return after, Info(proposal.widths, accepted, tokens, rows, finished)

    def fill(
        params: Any,
        state: DecodeState,
        tokens: Int[Tensor, "b t"],
        counts: Int[Tensor, " b"],
        extend: Any,
        absorb: Any,
    ) -> tuple[DecodeState, Tensor]:
        room = state.sampling.room
        if bool((counts > room).any()):
            raise CapacityError(
                f"{host(counts)} tokens were given to requests with room for "
                f"{host(room)}; make the state with a larger capacity"
            )
        target, hidden, features = extend(
            params, state.target, tokens, drafter.taps, counts
        )
        known = Committed(tokens, hidden, features, counts)
        draft = absorb(params, state.drafter, known)
        sampling = state.sampling._replace(room=room - counts)
        return DecodeState(target, draft, state.boundary, sampling), hidden

    def step(params: Any, state: DecodeState) -> tuple[DecodeState, Info]:
        return cycle(params, state, commit, drafter.absorb)

    def step_(
        params: Any, handle: Owned[DecodeState]
    ) -> tuple[Owned[DecodeState], Info]:
        # looked at first, taken last: a refused step leaves the handle good
        state, info = cycle(params, handle.look(), commit_, drafter.absorb_)
        handle.take()
        return Owned(state), info

    def prefill(
        params: Any, state: DecodeState, tokens: Tensor, counts: Tensor
    ) -> tuple[DecodeState, Tensor]:
        return fill(params, state, tokens, counts, extend, drafter.absorb)

    def prefill_(
        params: Any, handle: Owned[DecodeState], tokens: Tensor, counts: Tensor
    ) -> tuple[Owned[DecodeState], Tensor]:
        state, hidden = fill(
            params, handle.look(), tokens, counts, extend_, drafter.absorb_
        )
        handle.take()
        return Owned(state), hidden

    return Step(prefill, step, prefill_, step_)


def committed(verdict: Verdict, acceptance: Acceptance) -> Committed:
    """Name what a commit of this acceptance appends, for the drafter to absorb."""
    return Committed(
        verdict.block.tokens, verdict.hidden, verdict.features, acceptance.rows
    )
