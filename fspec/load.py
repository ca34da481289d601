"""From a checkpoint folder to parameters: read, check, stack, cast."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.checkpoint import read_tensors
from fspec.config import TargetConfig, read_config
from fspec.device import find_device
from fspec.errors import UnsupportedError
from fspec.kernels import kernels_on
from fspec.kernels.packed import Packed, Weight, quantize
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
    path: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> TargetParams:
    """Load a dense target checkpoint in Hugging Face layout, with its MTP head.

    Args:
        path: the folder; the embedded checkpoint where it is None.
        dtype: of weights and activations, float32 or bfloat16. Norm gains, the
            convolution and the parameters of the decay are held in fp32 as stored.
        device: holds everything, and its kernels run everything: `cpu`, `cuda`, `xpu`.

    Raises:
        ConfigError: `config.json` is missing, incomplete or contradicts itself.
        UnsupportedError: a valid checkpoint of a kind that fspec does not run, or a
            device that is not here.
        WeightError: a tensor is missing, unexpected, mis-shaped or untrained.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"dtype {dtype} was given; fspec computes in {DTYPES}")
    place = find_device(device)
    folder = embedded_path() if path is None else Path(path)
    config = read_config(folder)
    return build_target(config, read_tensors(folder, config), dtype, place)


def build_target(
    config: TargetConfig,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> TargetParams:
    """Stack and cast checked tensors to the parameters of a target.

    Args:
        config: sizes, which the tensors match.
        tensors: by canonical name, without `model.`; not aliased by the result.
        dtype: as in `load_target`.
        device: as in `load_target`.

    Raises:
        UnsupportedError: as in `load_target`.
    """
    place = find_device(device)
    kernels = kernels_on(place)
    if not config.full_layers or not config.delta_layers:
        raise UnsupportedError(
            f"layer kinds {config.layer_kinds} were given; fspec runs hybrids, with at "
            "least one full-attention and one linear-attention layer"
        )

    def rows(name: str) -> Tensor:
        return tensors[f"{name}.weight"].to(place, dtype)

    def weight(*names: str) -> Tensor:
        return stored(torch.cat([rows(name) for name in names]))

    def vector(name: str) -> Tensor:
        return tensors[name].to(place, torch.float32, copy=True)

    def gain(name: str) -> Tensor:
        return 1 + vector(f"{name}.weight")

    def layer(at: str) -> LayerParams:
        full = f"{at}.self_attn.q_proj.weight" in tensors
        mixer = (
            _attention(at, rows, weight, gain) if full else _delta(at, weight, vector)
        )
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
    embed = tensors["embed_tokens.weight"].to(place, dtype, copy=True)
    layers = tuple(layer(f"layers.{i}") for i in range(len(config.layer_kinds)))
    weights = [w for x in layers for w in (x.mixer.in_proj, x.mixer.out, *x.mlp)]
    return TargetParams(
        config,
        kernels.prepare(kernels, weights),
        embed,
        layers,
        gain("norm"),
        embed.t() if config.tied else weight("lm_head"),
        inverse_frequencies(config.rope).to(place),
        mtp,
    )


def pack_target(params: TargetParams, group: int, symmetric: bool) -> TargetParams:
    """Round the layers' weights to four bits, packed in memory.

    Embedding, head and MTP head stay as they are.

    Args:
        params: a dense target.
        group: inputs that share a scale, 32 or 128.
        symmetric: scales alone, or scales and zeros.

    Raises:
        ShapeError: fspec does not run that group.
    """

    def packed(weight: Weight) -> Weight:
        if isinstance(weight, Packed):
            return weight
        return quantize(weight, group, symmetric)

    layers = (
        layer._replace(
            mixer=layer.mixer._replace(
                in_proj=packed(layer.mixer.in_proj), out=packed(layer.mixer.out)
            ),
            mlp=MlpParams(*map(packed, layer.mlp)),
        )
        for layer in params.layers
    )
    return params._replace(layers=tuple(layers))


def stored(rows: Float[Tensor, "o i"]) -> Float[Tensor, "i o"]:
    """Lay out a weight's rows as the products of their device read them.

    A GPU's rows of terms lie side by side, so that a tile of them is a few long reads;
    the CPU's library is faster with outputs side by side.
    """
    if rows.device.type == "cpu":
        return rows.t().contiguous()
    return rows.contiguous().t()


def _attention(
    at: str,
    rows: Callable[[str], Tensor],
    weight: Callable[..., Tensor],
    gain: Callable[[str], Tensor],
) -> AttentionParams:
    q_gate, k, v = (rows(f"{at}.self_attn.{x}_proj") for x in "qkv")
    q_gain, k_gain = (gain(f"{at}.self_attn.{x}_norm") for x in "qk")
    dim = len(q_gain)
    # the checkpoint interleaves them: each head's query dims, then its gate dims
    q, gate = q_gate.unflatten(0, (-1, 2, dim)).unbind(1)
    heads = [q_gain.expand(len(q), -1), k_gain.expand(len(k) // dim, -1)]
    in_proj = torch.cat([q.flatten(0, 1), k, v, gate.flatten(0, 1)])
    out = weight(f"{at}.self_attn.o_proj")
    return AttentionParams(stored(in_proj), out, torch.cat(heads))


def _delta(
    at: str, weight: Callable[..., Tensor], vector: Callable[[str], Tensor]
) -> DeltaParams:
    at = f"{at}.linear_attn"
    log_a, dt_bias, gain, conv = (
        vector(f"{at}.{x}")
        for x in ("A_log", "dt_bias", "norm.weight", "conv1d.weight")
    )
    in_proj = weight(*(f"{at}.in_proj_{x}" for x in ("qkv", "b", "a", "z")))
    return DeltaParams(
        in_proj,
        stored(conv[:, 0].t()),  # read tap by tap, over many channels
        -log_a.exp(),
        dt_bias,
        gain,
        weight(f"{at}.out_proj"),
    )
