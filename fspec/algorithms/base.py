"""What drafters have in common."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from fspec.errors import ShapeError
from fspec.state.tree import copy
from fspec.types import Drafter, Proposal, SamplingState

MAX_WIDTH = 15


def drafter(
    name: str,
    width: int,
    init: Callable[..., Any],
    absorb_: Callable[..., Any],
    propose: Callable[..., Proposal],
    taps: tuple[int, ...] = (),
) -> Drafter:
    """Make a drafter from functions; the pure `absorb` follows from `absorb_`.

    Args:
        name: what reports call it.
        width: most drafts a cycle, 1…15.
        init: `(params, room) -> state`.
        absorb_: `(params, state, committed) -> state`, in the memory of `state`.
        propose: `(params, state, boundary, sampling) -> Proposal`, writing nothing.
        taps: target layers whose features it absorbs.

    Raises:
        ShapeError: the width is out of range.
    """
    if type(width) is not int or not 1 <= width <= MAX_WIDTH:
        raise ShapeError(
            f"width {width!r} was given for drafter {name}; it must be 1…{MAX_WIDTH}"
        )

    def absorb(params: Any, state: Any, committed: Any) -> Any:
        return absorb_(params, copy(state), committed)

    return Drafter(name, width, taps, init, absorb, absorb_, propose)


def draft_widths(sampling: SamplingState, width: int) -> Int[Tensor, " b"]:
    """Drafts each request takes: its own wish, the drafter's, what its context holds.

    Tokens that remain to be emitted do not limit it, so that acceptance is counted
    alike in every cycle.
    """
    room = (sampling.room - 1).clamp(min=0)
    widths = torch.minimum(sampling.width, room).clamp(min=0, max=width)
    return widths * (sampling.remaining > 0)
