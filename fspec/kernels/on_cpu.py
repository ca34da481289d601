"""The CPU's record: the vector form of every operation."""

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from fspec.kernels.attention.vector import attend
from fspec.kernels.base import Kernels
from fspec.kernels.delta.vector import delta
from fspec.kernels.gate.vector import norm_gate, sigmoid_gate, swiglu
from fspec.kernels.heads.vector import norm_rotate
from fspec.kernels.norm.vector import add_norm, rms_norm
from fspec.kernels.product.vector import lone_product, product
from fspec.kernels.vocab.vector import argmax, top
from fspec.types import Batch


def prepare(kernels: Kernels, weights: Iterable[Tensor]) -> Kernels:
    """Return the record as it is: nothing here depends on the weights."""
    return kernels


def plan(
    batch: Batch,
    t: int,
    heads: int,
    arena: Float[Tensor, "layer page row kv k"],
    table: Int[Tensor, "slot n"],
) -> Any:
    """Plan a call: the vector forms go request by request and need the facts alone."""
    return batch


VECTOR = Kernels(
    name="vector",
    prepare=prepare,
    plan=plan,
    product=product,
    lone_product=lone_product,
    rms_norm=rms_norm,
    add_norm=add_norm,
    norm_rotate=norm_rotate,
    sigmoid_gate=sigmoid_gate,
    norm_gate=norm_gate,
    swiglu=swiglu,
    attend=attend,
    delta=delta,
    argmax=argmax,
    top=top,
)
