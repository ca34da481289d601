"""A Gated DeltaNet layer's recurrence over raw rows, in chunks at absolute positions.

Raw rows are the projections before the convolution, with the logits of beta and decay.
Convolution window, gates and outputs are all computed from them, so they cannot
disagree.
"""

from fspec.kernels.delta.vector import CHUNK, delta, scan

__all__ = ["CHUNK", "delta", "scan"]
