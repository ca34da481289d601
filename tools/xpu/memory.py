"""Memory in which a wrong read or write shows.

What is allocated is filled with poison (NaN, or the lowest integer), and stands
between two guards of it: an element that a kernel forgot to write is NaN, a read past
the end brings NaN in, a write past the end damages a guard.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

GUARD = 1024  # elements on each side; keeps addresses multiples of 16


def poison(dtype: torch.dtype) -> float:
    """Return the value that must never come out of a kernel."""
    if dtype.is_floating_point:
        return torch.nan
    return 1 if dtype == torch.bool else torch.iinfo(dtype).min


def poisoned(tensor: Tensor, around: int = GUARD) -> Tensor:
    """Copy a tensor to between two guards."""
    made, _ = _between_guards(tuple(tensor.shape), tensor.dtype, around)
    return made.copy_(tensor)


def _between_guards(
    shape: tuple[int, ...], dtype: torch.dtype, around: int
) -> tuple[Tensor, Tensor]:
    size = torch.Size(shape).numel()
    base = torch.full((size + 2 * around,), poison(dtype), dtype=dtype)
    return base[around : around + size].view(shape), base


class Guards:
    """Every allocation made while it watches."""

    def __init__(self) -> None:
        """Start with none."""
        self._bases: list[Tensor] = []

    def empty(self, *size: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        """Stand in for `torch.empty`."""
        shape = size[0] if size and not isinstance(size[0], int) else size
        made, base = _between_guards(
            tuple(shape), dtype or torch.get_default_dtype(), GUARD
        )
        self._bases.append(base)
        return made

    def check(self) -> None:
        """Look at the guards.

        Raises:
            AssertionError: a kernel wrote outside of its output.
        """
        for base in self._bases:
            for guard in (base[:GUARD], base[-GUARD:]):
                fresh = torch.full_like(guard, poison(base.dtype))
                if not torch.equal(guard.view(torch.uint8), fresh.view(torch.uint8)):
                    raise AssertionError("a kernel wrote outside of its output")


@contextmanager
def guarded() -> Iterator[None]:
    """Poison and guard what launchers allocate; look at the guards at the end."""
    guards = Guards()
    like = torch.empty_like, torch.Tensor.new_empty
    empty = torch.empty

    def empty_like(given: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
        return guards.empty(given.shape, dtype=dtype or given.dtype)

    def new_empty(given: Tensor, *size: Any, dtype: Any = None, **_: Any) -> Tensor:
        return guards.empty(*size, dtype=dtype or given.dtype)

    torch.empty, torch.empty_like = guards.empty, empty_like
    torch.Tensor.new_empty = new_empty  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.empty = empty
        torch.empty_like, torch.Tensor.new_empty = like
    guards.check()
