"""The two devices that Triton is told to compile for."""

# the Triton of the other venv, not the one that pyright sees
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import re
import tempfile
from typing import Any

from triton._C.libtriton import ir
from triton.backends import backends
from triton.backends.compiler import GPUTarget

SLM_BYTES = 128 * 1024
DEVICE = "bmg-g31"  # the chip of the Arc Pro B70

_XE2 = {
    "name": "Xe2",
    "architecture": 0,
    "gpu_eu_count": 256,
    "gpu_subslice_count": 32,
    "max_work_group_size": 1024,
    "max_num_sub_groups": 64,
    "sub_group_sizes": [16, 32],
    "has_fp64": True,
    "has_subgroup_matrix_multiply_accumulate": True,
    "has_subgroup_matrix_multiply_accumulate_tensor_float32": True,
    "has_subgroup_2d_block_io": True,
    "has_bfloat16_conversions": True,
}

# a CPU has no matrix units, no 2-D block loads and no bf16 conversions; without them
# the same kernel becomes plain SPIR-V that Intel's OpenCL runtime executes
_PLAIN = {
    **_XE2,
    "name": "cpu",
    "max_work_group_size": 8192,
    "has_subgroup_matrix_multiply_accumulate": False,
    "has_subgroup_matrix_multiply_accumulate_tensor_float32": False,
    "has_subgroup_2d_block_io": False,
    "has_bfloat16_conversions": False,
}

XE2 = GPUTarget("xpu", _XE2, 32)
PLAIN = GPUTarget("xpu", _PLAIN, 32)


class _Architecture:
    """Names the architecture; Triton would build a C file against SYCL's headers."""

    def parse_device_arch(self, number: int) -> str:
        return "bmg"


def patch_backend() -> None:
    """Let Triton's Intel back end compile where SYCL is not installed.

    `triton.backends` loads its own copy of the compiler's module, so the name is
    replaced among the globals of that copy.
    """
    backend = backends["intel"].compiler
    loaded = backend.__init__.__globals__
    loaded["compile_module_from_src"] = lambda source, name: _Architecture()
    lower = backend.make_llir

    def make_llir(module: Any, metadata: dict, options: Any) -> str:
        return lower(_widen_exactly(module), metadata, options)

    backend.make_llir = staticmethod(make_llir)


_WIDEN = re.compile(
    r"tt\.fp_to_fp (%\S+) : (tensor<\w+xbf16, .+) -> (tensor<\w+xf32, )"
)


def _widen_exactly(module: Any) -> Any:
    """Mend the operands of products without matrix units.

    Triton 3.3 widens them from bf16 to fp32 by way of fp16, which makes zeros of
    numbers below 2 ** -14. `arith.extf` does it exactly. Native code has no such step:
    its matrix units take bf16.
    """
    text, found = _WIDEN.subn(r"arith.extf \1 : \2 to \3", str(module))
    if not found:
        return module
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(text)
        file.flush()
        mended = ir.parse_mlir_module(file.name, module.context)
    mended.context = module.context
    return mended
