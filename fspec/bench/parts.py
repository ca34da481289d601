"""A step's weights, a cycle's library calls, and a target of next to no numbers."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fspec.integrity import expected_shapes
from fspec.layers.decoder import TargetParams
from fspec.load import build_target


def step_weights(params: TargetParams) -> list[Tensor]:
    """List the dense weights `[in, out]` of a step of the target, the head last."""
    weights = []
    for layer in params.layers:
        feed = layer.mlp
        weights += [layer.mixer.in_proj, layer.mixer.out, feed.gate_up, feed.down]
    return [weight for weight in (*weights, params.head) if isinstance(weight, Tensor)]


def shrunken(params: TargetParams) -> TargetParams:
    """Make a target of the same layers whose every size is near its smallest.

    Its cycle runs the same program on next to no numbers, so what it takes is what
    Python and the library's dispatch take.
    """
    config = replace(
        params.config,
        **dict.fromkeys(("hidden", "intermediate", "head_dim"), 16),
        **dict.fromkeys(("key_dim", "value_dim"), 8),
        **dict.fromkeys(("heads", "value_heads"), 4),
        **dict.fromkeys(("kv_heads", "key_heads"), 2),
        vocab=16,
        rope=replace(params.config.rope, dim=4),
    )
    shapes = expected_shapes(config, mtp=params.mtp is not None)
    tensors = {name: torch.full(shape, 0.01) for name, shape in shapes.items()}
    return build_target(config, tensors, torch.float32, params.embed.device)


def count_calls(run: Callable[[], object]) -> Counter[str]:
    """Count the library calls of `run` by name, views included."""
    with torch.no_grad(), _Counter() as counter:
        run()
    return counter.calls


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))
