"""Weights of four bits: how they lie in memory.

A code q of 0…15 stands for `(q - zero) * scale`; a group of neighbouring inputs of one
output shares scale and zero. The order of the words is that of the GPU's product: it
reads tiles of 64 outputs by 128 inputs, and a nibble of a tile's 16 words is 16
neighbouring inputs.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int, Int8, Int32
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fspec.errors import ShapeError

GROUPS = (32, 128)
OUTER, INNER, WORDS = 64, 128, 16  # a tile: outputs, inputs, words of an output
NIBBLES = INNER // WORDS
MIDDLE = 8  # the zero where none is stored


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight `[inner, outer]` in codes; a pytree of its tensors, the sizes static.

    words: int32 `[outer / 64, inner / 128, 64, 16]`: bits 4i…4i+3 of word j of tile
        (n, g), output m, are the code of output 64 n + m and input 128 g + 16 i + j.
        Codes past the weight's own sizes are 0.
    scale: `[inner / group, outer]` in the model's dtype, both sizes rounded up to whole
        tiles; 0 past the weight's own.
    zero: int8, likewise; None where it is 8 everywhere.
    inner, outer: the weight's own sizes.
    group: inputs that share a scale, 32 or 128.
    """

    words: Int32[Tensor, "n g 64 16"]
    scale: Float[Tensor, "s m"]
    zero: Int8[Tensor, "s m"] | None
    inner: int
    outer: int
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """Sizes of the weight, as a dense one has them."""
        return self.inner, self.outer


Weight: TypeAlias = Tensor | Packed


def _flatten(packed: Packed) -> tuple[list[Any], Any]:
    tensors = [packed.words, packed.scale, packed.zero]
    return tensors, (packed.inner, packed.outer, packed.group)


def _unflatten(tensors: Any, sizes: Any) -> Packed:
    return Packed(*tensors, *sizes)


pytree.register_pytree_node(Packed, _flatten, _unflatten)


def pack(
    codes: Int[Tensor, "o i"],
    scale: Float[Tensor, "o s"],
    zero: Int[Tensor, "o s"] | None,
    group: int,
) -> Packed:
    """Pack codes of 0…15 with one scale, and maybe one zero, a group of inputs.

    Args:
        codes: of every output and input.
        scale: of every output and group; the last group may be short.
        zero: likewise, 0…15; None where every zero is 8.
        group: inputs of a group.

    Raises:
        ShapeError: a group that fspec does not run, or sizes that do not belong
            together.
    """
    check_group(group)
    outer, inner = codes.shape
    wanted = outer, -(-inner // group)
    given = [tuple(x.shape) for x in (scale, zero) if x is not None]
    if any(shape != wanted for shape in given):
        raise ShapeError(
            f"scales and zeros of shapes {given} were given for codes {outer} × "
            f"{inner}; groups of {group} need {wanted[0]} × {wanted[1]}"
        )
    padded = F.pad(codes.int(), (0, -inner % INNER, 0, -outer % OUTER))
    tiles = padded.view(-1, OUTER, padded.shape[1] // INNER, NIBBLES, WORDS)
    shift = 4 * torch.arange(NIBBLES, device=codes.device, dtype=torch.int32)
    words = (tiles << shift[:, None]).sum(3, dtype=torch.int32)
    # whole tiles: a kernel reads every group of a tile that it enters
    groups = padded.shape[1] // group

    def stored(x: Tensor) -> Tensor:
        return F.pad(x, (0, groups - wanted[1], 0, -outer % OUTER)).t().contiguous()

    return Packed(
        words.transpose(1, 2).contiguous(),
        stored(scale),
        None if zero is None else stored(zero.to(torch.int8)),
        inner,
        outer,
        group,
    )


def columns(w: Weight, first: int, end: int) -> Weight:
    """View outputs `first`…`end − 1` of a weight.

    Raises:
        ShapeError: of a packed weight, which can be cut between tiles alone.
    """
    if isinstance(w, Tensor):
        return w[:, first:end]
    if first % OUTER or (end % OUTER and end != w.outer):
        raise ShapeError(
            f"outputs {first}…{end - 1} of a packed weight of {w.outer} were asked "
            f"for; it can be cut at multiples of {OUTER}"
        )
    tiles = slice(first // OUTER, -(-end // OUTER))
    across = slice(first, tiles.stop * OUTER)
    zero = None if w.zero is None else w.zero[:, across]
    scale = w.scale[:, across]
    return Packed(w.words[tiles], scale, zero, w.inner, end - first, w.group)


def check_group(group: int) -> None:
    """Check the size of a group.

    Raises:
        ShapeError: fspec does not run it.
    """
    if group not in GROUPS:
        raise ShapeError(
            f"a group of {group} inputs was given; fspec runs groups of "
            f"{' and '.join(map(str, GROUPS))}"
        )
