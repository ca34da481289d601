"""RMS normalisation, alone and behind a residual sum."""

from fspec.kernels.norm.vector import add_norm, l2_norm, rms_norm

__all__ = ["add_norm", "l2_norm", "rms_norm"]
