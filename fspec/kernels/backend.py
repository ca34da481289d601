"""What every Triton launcher needs to know of the device it launches on."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor


class Launch(NamedTuple):
    """Options of a launch.

    Without fusion a product and a sum round separately everywhere, so an expression
    has the same bits in every kernel that holds it.
    """

    num_warps: int = 4
    num_stages: int = 2
    enable_fp_fusion: bool = False


def overlap(x: Tensor, wanted: bool = True) -> dict[str, Any]:
    """Options of a kernel that begins while the one before it ends (CUDA only)."""
    return {"PDL": True, "launch_pdl": True} if wanted and x.is_cuda else {"PDL": False}


def power(n: int) -> int:
    """Least power of two that holds `n`, and 16, the least side of a product."""
    return max(16, triton.next_power_of_2(n))


def descriptor(rows: Tensor, block: list[int]) -> Any:
    """Describe a row-major matrix to the tensor memory accelerator."""
    # not in the Triton of the XPU compile check, which never reaches this line
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), block)


def has_descriptors(rows: Tensor) -> bool:
    """Whether a matrix can be read by descriptor: CUDA, rows of whole 16 bytes."""
    return (
        rows.is_cuda
        and rows.dtype != torch.float32
        and rows.stride(1) == 1
        and rows.stride(0) * rows.element_size() % 16 == 0
        and rows.data_ptr() % 16 == 0
    )


def precision(dtype: torch.dtype) -> str:
    """How a product treats its operands; fp32 ones are never rounded."""
    return "ieee" if dtype == torch.float32 else "tf32"
