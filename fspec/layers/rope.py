"""Angles of the rotary position embedding."""

from jaxtyping import Float, Int
from torch import Tensor

from fspec.types import Rotation


def rotation(
    inv_freq: Float[Tensor, " f"], scale: float, positions: Int[Tensor, " r"]
) -> Rotation:
    """Build the rotation for rows at absolute `positions`.

    Angles are fp32 products, as in the models' training code: at a position near
    1,048,576 that rounds an angle by up to 0.06 rad, and a more exact product would be
    another model. `scale` is YaRN's attention factor; it multiplies cos and sin, so
    only the rotary dims of q and k are scaled.
    """
    angle = positions.float()[:, None, None] * inv_freq
    return Rotation(angle.cos() * scale, angle.sin() * scale)
