"""Rows of one request inside a call's rows."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def to_rows(x: Float[Tensor, "count h x"], t: int) -> Float[Tensor, "t h x"]:
    """Put zeros behind a request's real rows, up to the `t` that each request has."""
    return x if x.shape[0] == t else F.pad(x, (0, 0, 0, 0, 0, t - x.shape[0]))
