"""No drafter: a block is the boundary alone, a cycle is one token."""

from typing import Any

from jaxtyping import Int
from torch import Tensor

from fspec.types import Committed, Drafter, Proposal, Room, SamplingState


def none() -> Drafter:
    """Make sequential decoding, as a drafter that proposes nothing."""
    return Drafter("none", 0, (), init, absorb, absorb, propose)


def init(params: Any, room: Room) -> tuple[()]:
    """Make the empty state."""
    return ()


def absorb(params: Any, state: tuple[()], committed: Committed) -> tuple[()]:
    """Remember nothing."""
    return state


def propose(
    params: Any, state: tuple[()], boundary: Int[Tensor, " b"], sampling: SamplingState
) -> Proposal:
    """Propose no tokens."""
    return Proposal(boundary[:, None][:, :0], boundary * 0)
