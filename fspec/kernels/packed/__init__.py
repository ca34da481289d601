"""Weights of four bits with scales by group (W4A16), packed in memory."""

from fspec.kernels.packed.layout import Packed, Weight, columns, pack
from fspec.kernels.packed.vector import dequantize, quantize

__all__ = ["Packed", "Weight", "columns", "dequantize", "pack", "quantize"]
