"""Causal attention over pages and the block's own rows, in absolute tiles."""

from fspec.kernels.attention.vector import TILE, attend, attend_rows, gather_tiles

__all__ = ["TILE", "attend", "attend_rows", "gather_tiles"]
