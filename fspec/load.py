"""From a checkpoint folder to parameters: read, check, stack, cast."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fspec.checkpoint import read_tensors
from fspec.config import TargetConfig, read_config
from fspec.errors import UnsupportedError
from fspec.layers.attention import AttentionParams
from fspec.layers.decoder import LayerParams, MtpParams, TargetParams
from fspec.layers.deltanet import DeltaParams
from fspec.layers.mlp import MlpParams
from fspec.rope_config import inverse_frequencies

DTYPES = (torch.float32, torch.bfloat16)


def embedded_path() -> Path:
    """Folder of the small trained target that comes with fspec."""
    return Path(__file__).parent / "models" / "tiny" / "target"


def load_target(
    path: str | Path | None = None, dtype: torch.dtype = torch.float32
) -> TargetParams:
    """Load a dense target checkpoint in Hugging Face layout, with its MTP head.

    Args:
        path: the folder; the embedded checkpoint where it is None.
        dtype: of weights and activations, float32 or bfloat16. Norm gains, the
            convolution and the parameters of the decay are held in fp32 as stored.

    Raises:
        ConfigError: `config.json` is missing, incomplete or contradicts itself.
        UnsupportedError: a valid checkpoint of a kind that fspec does not run.
        WeightError: a tensor is missing, unexpected, mis-shaped or untrained.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"dtype {dtype} was given; fspec computes in {DTYPES}")
    folder = embedded_path() if path is None else Path(path)
    config = read_config(folder)
    return build_target(config, read_tensors(folder, config), dtype)


def build_target(
    config: TargetConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> TargetParams:
    """Stack and cast checked tensors to the parameters of a target.

    Args:
        config: sizes, which the tensors match.
        tensors: by canonical name, without `model.`; not aliased by the result.
        dtype: as in `load_target`.
    """
    if not config.full_layers or not config.delta_layers:
        raise UnsupportedError(
            f"layer kinds {config.layer_kinds} were given; fspec runs hybrids, with at "
            "least one full-attention and one linear-attention layer"
        )

    def weight(*names: str) -> Tensor:
        parts = [tensors[f"{name}.weight"].to(dtype) for name in names]
        return torch.cat(parts).t().contiguous()

    def gain(name: str) -> Tensor:
        return 1 + tensors[f"{name}.weight"].float()

    def layer(at: str) -> LayerParams:
        full = f"{at}.self_attn.q_proj.weight" in tensors
        mixer = _attention(at, weight, gain) if full else _delta(at, weight, tensors)
        feed = MlpParams(
            weight(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
            weight(f"{at}.mlp.down_proj"),
        )
        return LayerParams(
            mixer,
            feed,
            gain(f"{at}.input_layernorm"),
            gain(f"{at}.post_attention_layernorm"),
        )

    mtp = None
    if "mtp.fc.weight" in tensors:
        mtp = MtpParams(
            weight("mtp.fc"),
            gain("mtp.pre_fc_norm_embedding"),
            gain("mtp.pre_fc_norm_hidden"),
            layer("mtp.layers.0"),
            gain("mtp.norm"),
        )
    embed = tensors["embed_tokens.weight"].to(dtype, copy=True)
    return TargetParams(
        config,
        embed,
        tuple(layer(f"layers.{i}") for i in range(len(config.layer_kinds))),
        gain("norm"),
        embed.t() if config.tied else weight("lm_head"),
        inverse_frequencies(config.rope),
        mtp,
    )


def _attention(
    at: str, weight: Callable[..., Tensor], gain: Callable[[str], Tensor]
) -> AttentionParams:
    q_gate, k, v, out = (weight(f"{at}.self_attn.{x}_proj") for x in "qkvo")
    q_gain, k_gain = (gain(f"{at}.self_attn.{x}_norm") for x in "qk")
    dim = len(q_gain)
    # the checkpoint interleaves them: each head's query dims, then its gate dims
    q, gate = q_gate.unflatten(1, (-1, 2, dim)).unbind(2)
    heads = [q_gain.expand(q.shape[1], -1), k_gain.expand(k.shape[1] // dim, -1)]
    in_proj = torch.cat([q.flatten(1), k, v, gate.flatten(1)], 1)
    return AttentionParams(in_proj, out, torch.cat(heads))


def _delta(
    at: str, weight: Callable[..., Tensor], tensors: Mapping[str, Tensor]
) -> DeltaParams:
    at = f"{at}.linear_attn"
    log_a, dt_bias, gain, conv = (
        tensors[f"{at}.{x}"].float().clone()
        for x in ("A_log", "dt_bias", "norm.weight", "conv1d.weight")
    )
    in_proj = weight(*(f"{at}.in_proj_{x}" for x in ("qkv", "b", "a", "z")))
    return DeltaParams(
        in_proj, conv[:, 0], -log_a.exp(), dt_bias, gain, weight(f"{at}.out_proj")
    )
