"""Dense product `y = x w`, equal bit for bit for any number of rows."""

from fspec.kernels.product.vector import ROWS, lone_product, product

__all__ = ["ROWS", "lone_product", "product"]
