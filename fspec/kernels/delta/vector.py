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
) -> tuple[Float[Tensor, "t h v"], Float[Tensor, "h k v"]]:
    """Run the gated delta rule over `t` rows from a chunk's edge.

    Args:
        s: fp32 state before the first row, which stands at a multiple of `CHUNK`.
        q: normalised and scaled queries, fp32.
        k: normalised keys, fp32.
        v: values, fp32.
        beta: write strength in [0, 1].
        decay: log decay, <= 0, nats per token.

    Returns:
        Outputs of every row, and the state after the last *whole* chunk: rows of a
        begun chunk are read but not folded.

    Source: Gated DeltaNet, arXiv:2412.06464, section 3.2, in its chunk form.
    """
    rows, heads = beta.shape
    packed = torch.cat([q, k, v, beta[..., None], decay[..., None]], -1)
    packed = F.pad(packed, (0, 0, 0, 0, 0, -rows % CHUNK))
    packed = packed.view(-1, CHUNK, *packed.shape[1:]).transpose(1, 2)
    q, k, v, beta, decay = packed.split([k.shape[2], k.shape[2], v.shape[2], 1, 1], -1)
    total = decay.cumsum(2)
    upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=s.device).triu(1)
    # only differences are exponentiated, all <= 0: exp(-total) would overflow
    gap = (total - total.transpose(2, 3)).masked_fill(upper, -torch.inf)
    fade, grown = torch.exp(gap), torch.exp(total)
    both = torch.cat([q, k], 2)
    scores = torch.bmm(both.flatten(0, 1), k.transpose(2, 3).flatten(0, 1))
    within, mix = (scores.view(*both.shape[:3], CHUNK) * fade.repeat(1, 1, 2, 1)).chunk(
        2, 2
    )
    mix = mix * beta
    strong, fresh = beta * grown, beta * v
    left = (k * torch.exp(total[:, :, -1:] - total)).transpose(2, 3)
    out = []
    for c in range(both.shape[0]):
        known = torch.bmm(both[c], s)
        # the solver takes the diagonal for ones and reads nothing above it
        delta = torch.linalg.solve_triangular(
            mix[c],
            fresh[c] - strong[c] * known[:, CHUNK:],
            upper=False,
            unitriangular=True,
        )
        carried = grown[c] * known[:, :CHUNK]
        out.append(torch.baddbmm(carried, within[c], delta))
        if (c + 1) * CHUNK <= rows:
            s = torch.baddbmm(grown[c, :, -1:] * s, left[c], delta)
    merged = torch.stack(out).transpose(1, 2).flatten(0, 1)
    return merged[:rows], s
