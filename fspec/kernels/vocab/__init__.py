"""The target's head where only its best tokens are wanted, not its logits."""

from fspec.kernels.vocab.vector import argmax, top

__all__ = ["argmax", "top"]
