"""What a table of cases is made of. `tests/xpu` holds the tables."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Native:
    """Kernels that must compile to machine code without spilling.

    `launch` calls the project's launchers at real shapes. Nothing is executed: its
    tensors may be `torch.empty` of any size, of which no byte is touched.
    """

    label: str
    launch: Callable[[], object]
    dpas: bool = False
    """Whether every kernel must use the GPU's matrix units."""
    reject: str | None = None
    """For a negative control: words that the failure must hold."""


@dataclass(frozen=True)
class Run:
    """Kernels that are executed on the CPU.

    `call(first, last)` computes rows `first … last - 1` through the project's
    launchers and returns tensors with a row axis in front. All rows together must be
    near `wanted()`, and every window of rows computed alone must have the same bytes:
    that is the row law.
    """

    label: str
    rows: int
    call: Callable[[int, int], tuple[Tensor, ...]]
    wanted: Callable[[], tuple[Tensor, ...]]
    windows: tuple[tuple[int, int], ...] = field(default=())
    rtol: float = 1e-5
    atol: float = 1e-5
    reject: str | None = None
    """For a negative control: words that the failure must hold."""


Case = Native | Run
