"""The gated delta rule in chunks of `CHUNK` rows at absolute positions."""

from fspec.kernels.delta.vector import CHUNK, scan

__all__ = ["CHUNK", "scan"]
