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
    q, k, v = (_chunks(x) for x in (q, k, v))
    beta, decay = (_chunks(x[..., None])[..., 0] for x in (beta, decay))
    chunks = beta.shape[0]
    total = decay.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=s.device).tril()
    gap = total[..., :, None] - total[..., None, :]
    # only differences are exponentiated, all <= 0: exp(-total) would overflow
    fade = torch.exp(gap.masked_fill(~lower, -torch.inf))
    within = _bmm(q, k.transpose(-1, -2)) * fade
    mix = (beta[..., None] * _bmm(k, k.transpose(-1, -2)) * fade).tril(-1)
    grown = torch.exp(total)[..., None]
    left = k * torch.exp(total[..., -1:] - total)[..., None]
    out = []
    for c in range(chunks):
        wanted = beta[c, ..., None] * (v[c] - grown[c] * torch.bmm(k[c], s))
        delta = torch.linalg.solve_triangular(
            mix[c], wanted, upper=False, unitriangular=True
        )
        out.append(grown[c] * torch.bmm(q[c], s) + torch.bmm(within[c], delta))
        if (c + 1) * CHUNK <= rows:
            s = grown[c, :, -1:] * s + torch.bmm(left[c].transpose(1, 2), delta)
    merged = torch.stack(out).transpose(1, 2).reshape(chunks * CHUNK, heads, -1)
    return merged[:rows], s


def _chunks(x: Float[Tensor, "t h x"]) -> Float[Tensor, "c h 16 x"]:
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[0] % CHUNK))
    return x.reshape(-1, CHUNK, *x.shape[1:]).transpose(1, 2).contiguous()


def _bmm(
    a: Float[Tensor, "c h i j"], b: Float[Tensor, "c h j l"]
) -> Float[Tensor, "c h i l"]:
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])
