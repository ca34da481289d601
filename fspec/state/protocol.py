"""What every kind of state can do; each kind registers its own way.

`cut`, `fork`, `reset` are pure: they return a new state and write nothing. States of
drafters of your own join in with `@cut.register` and so on.
"""

from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from fspec.errors import UnsupportedError


@singledispatch
def cut(state: Any, length: Int[Tensor, " b"]) -> Any:
    """Take each batch row back to `length` committed tokens.

    Args:
        state: not written.
        length: at most the present lengths, at least those of two commits ago; known
            tokens (`extend`) are never cut.

    Returns:
        The shorter state. Nothing is recomputed: what lies behind the new length
        simply no longer counts.

    Raises:
        StateError: a length is out of reach; nothing has been changed.
    """
    raise _unknown(state, "cut")


@singledispatch
def fork(state: Any, source: int, target: int) -> Any:
    """Make slot `target` a branch of slot `source`, sharing its pages.

    `fspec.branch` calls it and counts the new references to the pages.
    """
    raise _unknown(state, "fork")


@singledispatch
def reset(state: Any, slot: int) -> Any:
    """Make a slot an empty sequence without pages, whatever was there."""
    raise _unknown(state, "reset")


@singledispatch
def canonical(state: Any, params: Any) -> Any:
    """Gather what counts of a state, one record a batch row.

    Two states that behave alike have equal canonical states; page numbers, dead rows
    and how far folding has got do not show.
    """
    raise _unknown(state, "canonical")


def _unknown(state: Any, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} was called with a {type(state).__name__}, which has not registered "
        f"it; add @{what}.register for that type"
    )


# a plain tuple of states, such as (target, drafter): each by its own way


@cut.register
def _(state: tuple, length: Tensor) -> Any:  # pyright: ignore
    return _each(state, cut, length)


@fork.register
def _(state: tuple, source: int, target: int) -> Any:  # pyright: ignore
    return _each(state, fork, source, target)


@reset.register
def _(state: tuple, slot: int) -> Any:  # pyright: ignore
    return _each(state, reset, slot)


@canonical.register
def _(state: tuple, params: Any) -> Any:  # pyright: ignore
    return _each(state, canonical, params)


def _each(state: Any, f: Any, *args: Any) -> tuple[Any, ...]:
    if hasattr(state, "_fields"):  # a record whose type has not registered
        raise _unknown(state, f.__name__)
    return tuple(f(part, *args) for part in state)


def put(x: Tensor, axis: int, at: int, value: Tensor | int) -> Tensor:
    """Copy of `x` with index `at` of `axis` set to `value`."""
    fresh = x.clone()
    fresh.select(axis, at).copy_(torch.as_tensor(value, device=x.device))
    return fresh


def copy_slot(x: Tensor, axis: int, source: int, target: int) -> Tensor:
    """Copy of `x` with slot `target` of `axis` equal to slot `source`."""
    return put(x, axis, target, x.select(axis, source))
