"""The delta rule on a CPU: one program of fixed shape for every chunk of rows.

Decoding a token, verifying a block and prefilling a prompt all run this program on
chunks that start at multiples of `CHUNK`. Rows that do not exist yet are zeros; a row
reads only the rows before it, so zeros and real later rows give it the same bits.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

CHUNK = 16


def scan(
    s: Float[Tensor, "h k v"],
    q: Float[Tensor, "t h k"],
    k: Float[Tensor, "t h k"],
    v: Float[Tensor, "t h v"],
    beta: Float[Tensor, "t h"],
    decay: Float[Tensor, "t h"],
    fold: int,
) -> tuple[Float[Tensor, "t h v"], Float[Tensor, "h k v"]]:
    """Run the gated delta rule over `t` rows from a chunk's edge.

    Args:
        s: fp32 state before the first row, which stands at a multiple of `CHUNK`.
        q: normalised and scaled queries, fp32.
        k: normalised keys, fp32.
        v: values, fp32.
        beta: write strength in [0, 1].
        decay: log decay, <= 0, nats per token.
        fold: rows that the returned state has seen, a multiple of `CHUNK` up to `t`.

    Returns:
        Outputs of every row, and the state after the first `fold` rows.

    Source: Gated DeltaNet, arXiv:2412.06464, section 3.2, in its chunk form.
    """
    rows, heads, dim = k.shape
    packed = torch.cat([q, k, v, beta[..., None], decay[..., None]], -1)
    packed = F.pad(packed, (0, 0, 0, 0, 0, -rows % CHUNK))
    packed = packed.view(-1, CHUNK, heads, packed.shape[2]).transpose(1, 2).contiguous()
    sizes = [2 * dim, v.shape[2], 1, 1]
    both, v, beta, decay = packed.split_with_sizes(sizes, -1)
    q, k = both.chunk(2, -1)
    total = decay.cumsum(2)
    # only differences are exponentiated, all <= 0 in the lower half that is kept:
    # exp(-total) would overflow
    fade = torch.exp((total - total.transpose(2, 3)).clamp(max=0)).tril()
    grown = torch.exp(total)
    both = torch.cat([q, k], 2)
    scores = torch.bmm(both.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
    scores = scores.view(-1, heads, 2, CHUNK, CHUNK) * fade[:, :, None]
    within, mix = scores.unbind(2)
    mix, strong, fresh = mix * beta, beta * grown, beta * v
    left = (k * fade[:, :, -1, :, None]).transpose(2, 3)
    out, folded, last = [], s, both.shape[0] - 1
    for c in range(last + 1):
        carried, predicted = torch.bmm(both[c], s).chunk(2, 1)
        wanted = torch.addcmul(fresh[c], strong[c], predicted, value=-1)
        # the solver takes the diagonal for ones and reads nothing above it
        delta = torch.linalg.solve_triangular(
            mix[c], wanted, upper=False, unitriangular=True
        )
        out.append(torch.baddbmm(grown[c] * carried, within[c], delta))
        if c < last or fold > c * CHUNK:
            s = torch.baddbmm(grown[c, :, -1:] * s, left[c], delta)
        if fold == (c + 1) * CHUNK:
            folded = s
    return torch.stack(out).transpose(1, 2).flatten(0, 1)[:rows], folded
