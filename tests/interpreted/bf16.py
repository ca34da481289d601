"""Right bf16 arithmetic in Triton 3.9's interpreter, which computes with the bits.

A bf16 number is kept as fp32 that is already rounded to nearest even; it turns to 16
bits at loads and stores alone. Products of such numbers, summed in fp32, are what
`tl.dot` makes of bf16 operands.
"""

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

Array = np.ndarray[Any, Any]
Handle = interpreter.TensorHandle
Builder: Any = interpreter.InterpreterBuilder


def to_bits(x: Array) -> Array:
    """Round fp32 to the 16 bits of the nearest bf16; NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    high = (bits + even + np.uint32(0x7FFF)) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), high.astype(np.uint16))


def from_bits(bits: Array) -> Array:
    """Read 16 bits as the fp32 number of the same value."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounded(x: Array) -> Array:
    """Round fp32 to the nearest bf16, kept as fp32."""
    return from_bits(to_bits(x))


def is_bf16(kind: Any) -> bool:
    """Whether a type, or the type of a block's elements, is bf16."""
    return getattr(kind, "scalar", kind) == tl.bfloat16


def mend() -> None:
    """Replace the interpreter's bf16 arithmetic for the rest of the process."""
    _mend_types()
    _mend_memory()
    _mend_casts()
    _mend_rounding()


def _mend_types() -> None:
    module: Any = interpreter
    numpy_type, check = module._get_np_dtype, module._validate_np_data_size

    def get(kind: Any) -> Any:
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return np.dtype(np.float32) if scalar == tl.bfloat16 else numpy_type(scalar)

    module._get_np_dtype = get
    module._validate_np_data_size = lambda data, kind: (
        is_bf16(kind) or check(data, kind)
    )


def _mend_memory() -> None:
    load_before, store_before = Builder.create_masked_load, Builder.create_masked_store

    def load(self, pointers, mask, other, cache=None, volatile=False) -> Any:
        if pointers.get_element_ty() != tl.bfloat16:
            return load_before(self, pointers, mask, other, cache, volatile)
        shape = pointers.data.shape
        fill = np.zeros(shape, np.uint16)
        if other is not None:
            fill = to_bits(np.broadcast_to(other.data, shape))
        module: Any = interpreter
        bits = module._interpreter.load(
            pointers.data, mask.data, fill, np.dtype(np.uint16)
        )
        return Handle(from_bits(bits), tl.bfloat16)

    def store(self, pointers, value, mask, cache=None) -> Any:
        if pointers.get_element_ty() == tl.bfloat16:
            value = Handle(to_bits(value.data), tl.uint16)
        return store_before(self, pointers, value, mask, cache)

    Builder.create_masked_load, Builder.create_masked_store = load, store


def _mend_casts() -> None:
    cast_before, bitcast_before = Builder.cast_impl, Builder.create_bitcast
    module: Any = interpreter

    def cast(self, source, kind) -> Any:
        if is_bf16(kind):
            return Handle(rounded(source.data.astype(np.float32)), tl.bfloat16)
        if is_bf16(source.dtype):
            return Handle(source.data.astype(module._get_np_dtype(kind)), kind.scalar)
        return cast_before(self, source, kind)

    def narrow(self, source, kind, rounding) -> Any:
        return cast(self, source, kind)

    def bitcast(self, source, kind) -> Any:
        if is_bf16(source.dtype):
            source = Handle(to_bits(source.data), tl.uint16)
        if is_bf16(kind):
            return Handle(from_bits(source.data.view(np.uint16)), tl.bfloat16)
        return bitcast_before(self, source, kind)

    Builder.cast_impl, Builder.create_fp_to_fp = cast, narrow
    Builder.create_bitcast = bitcast


def _mend_rounding() -> None:
    def round_result(operation: Any) -> Any:
        def run(self, *args) -> Any:
            result = operation(self, *args)
            if is_bf16(result.dtype) and result.data.dtype.kind == "f":
                result.data = rounded(result.data)
            return result

        return run

    for name in ("binary_op", "unary_op", "ternary_op", "create_fma"):
        setattr(Builder, name, round_result(getattr(Builder, name)))
