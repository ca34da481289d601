"""The GPU's record: Triton kernels on CUDA and XPU, the same source."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from jaxtyping import Float
from torch import Tensor

from fspec.kernels.attention.triton import attend
from fspec.kernels.base import Kernels
from fspec.kernels.delta.triton import delta
from fspec.kernels.gate.triton import norm_gate, sigmoid_gate, swiglu
from fspec.kernels.heads.triton import norm_rotate
from fspec.kernels.norm.triton import add_norm, rms_norm
from fspec.kernels.packed import Packed, Weight
from fspec.kernels.packed.triton import product as packed_product
from fspec.kernels.plan import plan
from fspec.kernels.product.triton import product as dense_product
from fspec.kernels.product.triton import prove
from fspec.kernels.vocab.triton import argmax, top


def product(
    x: Float[Tensor, "r i"],
    w: Weight,
    library: frozenset[tuple[int, int, int]] = frozenset(),
) -> Float[Tensor, "r o"]:
    """Multiply rows by a weight, dense or packed."""
    if isinstance(w, Packed):
        return packed_product(x, w)
    return dense_product(x, w, library)


def prepare(kernels: Kernels, weights: Iterable[Tensor]) -> Kernels:
    """Let the library multiply long chunks where it is proven to give the same bits.

    Runs both once for each size of weight; where they differ, the tiles stay.
    """
    sizes = {tuple(w.shape): w for w in weights}
    library = frozenset[tuple[int, int, int]]().union(*map(prove, sizes.values()))
    return replace(kernels, product=partial(product, library=library))


def lone_product(x: Float[Tensor, "1 i"], w: Weight) -> Float[Tensor, "1 o"]:
    """Multiply a row that always comes alone: the same kernel."""
    return product(x, w)


TRITON = Kernels(
    name="triton",
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
