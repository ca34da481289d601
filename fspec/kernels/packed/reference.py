"""What a packed weight stands for, one code at a time."""

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.kernels.packed.layout import MIDDLE, Packed


def dequantize(packed: Packed) -> Float[Tensor, "i o"]:
    """`(code - zero) * scale` of every input and output, in the scales' dtype."""
    out = packed.scale.new_empty(packed.inner, packed.outer)
    for k in range(packed.inner):
        tile, nibble, word = k // 128, k % 128 // 16, k % 16
        for n in range(packed.outer):
            bits = int(packed.words[n // 64, tile, n % 64, word])
            at = k // packed.group, n
            zero = MIDDLE if packed.zero is None else int(packed.zero[at])
            code = bits >> (4 * nibble) & 15
            out[k, n] = torch.tensor(float(code - zero)) * packed.scale[at]
    return out
