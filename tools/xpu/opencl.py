"""Execute a compiled Triton kernel on the CPU by Intel's OpenCL runtime."""

import ctypes
import struct
import warnings
from collections.abc import Iterator

import numpy as np
import pyopencl as cl  # pyright: ignore[reportMissingImports], in the other venv
from torch import Tensor

_CAPABILITY, _EXTENSION, _EXECUTION_MODE = 17, 10, 16
_KERNEL_ATTRIBUTES = 5892
_ATTRIBUTES_EXTENSION = b"SPV_INTEL_kernel_attributes"
_MAX_WORKGROUP_SIZE = 5893

_SCALARS = {
    "i1": np.uint8,
    "u1": np.uint8,
    "i8": np.int8,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
    "fp32": np.float32,
    "fp64": np.float64,
}


def _instructions(words: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = 5
    while at < len(words):
        count, code = words[at] >> 16, words[at] & 0xFFFF
        yield code, words[at : at + count]
        at += count


def _is_for_gpus(code: int, words: tuple[int, ...]) -> bool:
    if code == _CAPABILITY:
        return words[1] == _KERNEL_ATTRIBUTES
    if code == _EXECUTION_MODE:
        return words[2] == _MAX_WORKGROUP_SIZE
    if code == _EXTENSION:
        name = struct.pack(f"<{len(words) - 1}I", *words[1:])
        return name.split(b"\0")[0] == _ATTRIBUTES_EXTENSION
    return False


def strip(spirv: bytes) -> bytes:
    """Drop the limit on work-group sizes, three words that the CPU does not know."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    kept = list(words[:5])
    for code, instruction in _instructions(words):
        if not _is_for_gpus(code, instruction):
            kept += instruction
    return struct.pack(f"<{len(kept)}I", *kept)


class Runtime:
    """The CPU as an OpenCL device."""

    def __init__(self) -> None:
        """Open the one device there is.

        Raises:
            RuntimeError: it cannot read torch's memory where it is.
        """
        self.device = cl.get_platforms()[0].get_devices()[0]
        shared = cl.device_svm_capabilities.FINE_GRAIN_SYSTEM
        if not self.device.svm_capabilities & shared:
            raise RuntimeError(f"{self.version} shares no memory with its host")
        self._context = cl.Context([self.device])
        self._queue = cl.CommandQueue(self._context)

    @property
    def version(self) -> str:
        """Name and version of the runtime."""
        return f"{self.device.platform.name} {self.device.driver_version}"

    def build(self, spirv: bytes, name: str) -> cl.Kernel:
        """Compile SPIR-V to code of this CPU."""
        program = cl.Program(self._context, strip(spirv))
        with warnings.catch_warnings():  # the runtime says "Done." and is warned of
            warnings.simplefilter("ignore", cl.CompilerWarning)
            return cl.Kernel(program.build(), name)

    def launch(
        self,
        kernel: cl.Kernel,
        arguments: list[tuple[str, object]],
        groups: tuple[int, int, int],
        lanes: int,
        local_bytes: int,
    ) -> None:
        """Run a kernel and wait for it.

        Args:
            kernel: what `build` made.
            arguments: (Triton type, value) each; a tensor is passed by its address.
            groups: Triton's grid.
            lanes: work-items a group.
            local_bytes: shared memory a group.
        """
        for i, (kind, value) in enumerate(arguments):
            kernel.set_arg(i, _argument(kind, value))
        if kernel.num_args > len(arguments):  # Triton's own: the shared memory
            kernel.set_arg(len(arguments), cl.LocalMemory(max(local_bytes, 16)))
        size = (groups[0] * lanes, groups[1], groups[2])
        cl.enqueue_nd_range_kernel(self._queue, kernel, size, (lanes, 1, 1)).wait()


def _argument(kind: str, value: object) -> object:
    if not isinstance(value, Tensor):
        return _SCALARS[kind](value)
    byte = (ctypes.c_byte * 1).from_address(value.data_ptr())
    return cl.SVM(np.ctypeslib.as_array(byte))
