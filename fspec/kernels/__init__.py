"""One folder an operation: `reference.py` defines it, `vector.py` runs it on a CPU.

An operation's forms have one signature. The reference is a plain loop to read and to
test against; the others keep the row law: a row's bits depend on that row's own inputs
and never on how many rows share the call. Which form runs is decided by the device,
once, when a target is made; nothing falls back to another.
"""

from collections.abc import Callable

import torch

from fspec.errors import UnsupportedError
from fspec.kernels.base import Kernels
from fspec.kernels.on_cpu import VECTOR

__all__ = ["Kernels", "kernels_on"]


def kernels_on(device: torch.device | str) -> Kernels:
    """Return the record of the operations for a device, by its type.

    Raises:
        UnsupportedError: fspec has no kernels for that type.
    """
    kind = torch.device(device).type
    if kind not in _BY_TYPE:
        raise UnsupportedError(
            f"device {kind} was given; fspec has kernels for {', '.join(_BY_TYPE)}"
        )
    return _BY_TYPE[kind]()


def _triton() -> Kernels:
    # not above: Triton is not there where only a CPU is
    from fspec.kernels.on_gpu import TRITON

    return TRITON


_BY_TYPE: dict[str, Callable[[], Kernels]] = {
    "cpu": lambda: VECTOR,
    "cuda": _triton,
    "xpu": _triton,
}
