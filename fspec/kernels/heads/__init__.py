"""Norm and rotation of query and key heads."""

from fspec.kernels.heads.vector import norm_rotate

__all__ = ["norm_rotate"]
