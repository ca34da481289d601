"""`fspec bench kernels`: each Triton kernel checked at its real sizes, then timed."""

from fspec.bench.kernels.command import run_kernels

__all__ = ["run_kernels"]
