"""Product `y = x w`, `w` dense or packed, equal bit for bit for any number of rows."""

from fspec.kernels.product.vector import ROWS, lone_product, product

__all__ = ["ROWS", "lone_product", "product"]
