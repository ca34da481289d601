"""What the gated delta rule is: one row after another."""

import torch
from jaxtyping import Float
from torch import Tensor


def scan(
    s: Float[Tensor, "h k v"],
    q: Float[Tensor, "t h k"],
    k: Float[Tensor, "t h k"],
    v: Float[Tensor, "t h v"],
    beta: Float[Tensor, "t h"],
    decay: Float[Tensor, "t h"],
    fold: int,
) -> tuple[Float[Tensor, "t h v"], Float[Tensor, "h k v"]]:
    """Run the recurrence over `t` rows in float64: decay, predict, write, read.

    Args:
        s: the state before the first row.
        q: normalised and scaled queries.
        k: normalised keys.
        v: values.
        beta: write strength in [0, 1].
        decay: log decay, <= 0, nats per token.
        fold: rows that the returned state has seen.

    Returns:
        Outputs of every row, and the state after the first `fold`; both fp32.

    Source: Gated DeltaNet, arXiv:2412.06464, eq. 10.
    """
    s = folded = s.double()
    out = []
    for t in range(q.shape[0]):
        s = s * decay[t].double().exp()[:, None, None]
        predicted = (s * k[t].double()[:, :, None]).sum(1)
        delta = beta[t].double()[:, None] * (v[t].double() - predicted)
        s = s + k[t].double()[:, :, None] * delta[:, None, :]
        out.append((s * q[t].double()[:, :, None]).sum(1))
        if t + 1 == fold:
            folded = s
    return torch.stack(out).float(), folded.float()
