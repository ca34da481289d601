"""States as values: leaves, equality, copies, and the handle that owns one."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fspec.errors import StateError, UnsupportedError

T = TypeVar("T")


def host(x: Tensor) -> list[int]:
    """Values of an integer vector, on the host.

    Raises:
        UnsupportedError: it has none, as under `torch.vmap`.
    """
    try:
        return cast(Any, x).tolist()
    except RuntimeError as error:
        raise UnsupportedError(
            "a vector without values was given, as under torch.vmap, which would "
            "change the shapes of products and so bits; use the batch axis instead"
        ) from error


def map_tensors(f: Callable[[Tensor], Tensor], tree: T) -> T:
    """Apply `f` to every tensor of a pytree; other leaves stay."""
    return cast(T, pytree.tree_map_only(Tensor, f, tree))


def copy(tree: T) -> T:
    """Copy every tensor of a pytree to memory of its own."""
    return map_tensors(Tensor.clone, tree)


def equal(a: Any, b: Any) -> bool:
    """Whether two pytrees have one structure and the same bytes in every leaf."""
    left, left_spec = pytree.tree_flatten(a)
    right, right_spec = pytree.tree_flatten(b)
    return left_spec == right_spec and all(map(_same, left, right))


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    raw = (x.reshape(-1).clone().view(torch.uint8) for x in (a, b))
    return torch.equal(*raw)


class Owned(Generic[T]):
    """A state that has one owner, so a step may work in its memory.

    `step_` consumes a handle and gives a new one; a consumed handle raises.
    """

    def __init__(self, state: T) -> None:
        """Wrap `state`, whose memory nobody else holds; use `own` to get that."""
        self._state: T | None = state

    def take(self) -> T:
        """Consume the handle and return the state.

        Raises:
            StateError: the handle was consumed before.
        """
        if self._state is None:
            raise StateError(
                "this handle was consumed by an earlier step_ or take; use the handle "
                "that the step returned, or own() the state anew"
            )
        state, self._state = self._state, None
        return state

    def look(self) -> T:
        """Return the state to read; the next `step_` overwrites what it holds.

        Raises:
            StateError: the handle was consumed before.
        """
        if self._state is None:
            raise StateError("this handle was consumed; its state has moved on")
        return self._state


def own(state: T) -> Owned[T]:
    """Copy a state once into memory of its own and return the handle to it."""
    return Owned(copy(state))
