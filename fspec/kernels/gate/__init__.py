"""Activations and the products that gate by them."""

from fspec.kernels.gate.vector import (
    norm_gate,
    sigmoid,
    sigmoid_gate,
    silu,
    softplus,
    swiglu,
)

__all__ = ["norm_gate", "sigmoid", "sigmoid_gate", "silu", "softplus", "swiglu"]
