"""What a checkpoint must hold: names, shapes, dtypes and trained payloads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fspec.config import TargetConfig
from fspec.errors import UnsupportedError, WeightError

_DTYPES = ("BF16", "F16", "F32")
# Last parts of the names that quantised checkpoints add.
_PACKED = frozenset(
    {
        "weight_packed",
        "weight_scale",
        "weight_scale_2",
        "weight_scale_inv",
        "weight_global_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_g_idx",
        "input_scale",
        "input_global_scale",
        "input_zero_point",
        "qweight",
        "qzeros",
        "scales",
        "g_idx",
    }
)
_NAMED = 6  # tensors that one message names


@dataclass(frozen=True)
class Entry:
    """One tensor as a file's header describes it; the payload is not read."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str


def expected_shapes(config: TargetConfig, mtp: bool) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by canonical name, in the model's order.

    Args:
        config: the target; a tied one has no `lm_head.weight`.
        mtp: whether the tensors of the MTP head are among them.
    """
    hidden, vocab = config.hidden, config.vocab
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (vocab, hidden)}
    for index, kind in enumerate(config.layer_kinds):
        mixer = _delta if kind == "linear_attention" else _attention
        shapes |= _prefixed(f"layers.{index}.", _block(config) | mixer(config))
    shapes["norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (vocab, hidden)
    if mtp:
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            shapes[f"mtp.{name}.weight"] = (hidden,)
        shapes |= _prefixed("mtp.layers.0.", _block(config) | _attention(config))
    return shapes


def check_storage(entries: Iterable[Entry]) -> None:
    """Check that no tensor is quantised or of a dtype that fspec does not read.

    Raises:
        UnsupportedError: names the first such tensor.
    """
    for entry in entries:
        packed = entry.name.rpartition(".")[2] in _PACKED
        if packed or entry.dtype not in _DTYPES:
            raise UnsupportedError(
                f"{entry.file}: tensor {entry.name} ({entry.dtype}) is of a quantised "
                "or unknown format, expected BF16, F16 or F32 weights; use the "
                "unquantised checkpoint"
            )


def check_names(
    folder: Path, found: Mapping[str, Entry], unknown: Sequence[str], mtp_layers: int
) -> bool:
    """Check MTP's presence and that no name is unknown; return whether MTP is there.

    Args:
        folder: the checkpoint, for messages.
        found: entries by canonical name.
        unknown: names in the files that are no part of the model.
        mtp_layers: what the config announces. Its tensors may all be absent.

    Raises:
        WeightError: unknown names, or `mtp.*` tensors that no config announces.
    """
    mtp = [name for name in found if name.startswith("mtp.")]
    if mtp and mtp_layers == 0:
        raise WeightError(
            f"{folder}: found {_listed(mtp)}, expected none because config.json has no "
            "mtp_num_hidden_layers (usual cause: a config.json of another conversion); "
            "set it to 1 or remove the tensors"
        )
    if unknown:
        raise WeightError(
            f"{folder}: found {_listed(unknown)}, expected none of that name in the "
            "model of config.json (usual cause: a config.json or a file of another "
            "model); remove what does not belong"
        )
    return bool(mtp)


def check_shapes(
    folder: Path, found: Mapping[str, Entry], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Check that `found` has exactly the tensors of `shapes`, in these shapes.

    Raises:
        WeightError: missing, unexpected or mis-shaped tensors, named.
    """
    unexpected = [entry.name for name, entry in found.items() if name not in shapes]
    missing = [name for name in shapes if name not in found]
    if missing:
        also = f"; not in the model: {_listed(unexpected)}" if unexpected else ""
        raise WeightError(
            f"{folder}: missing {_listed(missing)}, expected shape "
            f"{list(shapes[missing[0]])} for the first{also} ({_cause(missing)})"
        )
    if unexpected:
        raise WeightError(
            f"{folder}: found {_listed(unexpected)}, expected no such tensor (usual "
            "cause: config.json has fewer layers, or other layer_types, than the files)"
        )
    for name, shape in shapes.items():
        entry = found[name]
        if entry.shape != shape:
            raise WeightError(
                f"{entry.file}: {entry.name} has shape {list(entry.shape)}, expected "
                f"{list(shape)} (usual cause: config.json of another model size)"
            )


def check_payload(entry: Entry, tensor: Tensor) -> None:
    """Check that `tensor` is finite and, where zeros mean nothing, not all zero.

    Zero is a legal value of the zero-centred norms, of `A_log` and of `dt_bias`.

    Raises:
        WeightError: NaN or infinity, or an all-zero payload.
    """
    low, high = torch.aminmax(tensor)  # NaN goes through; no copy of the tensor
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise WeightError(
            f"{entry.file}: {entry.name} holds NaN or infinity, expected finite values "
            "(usual cause: a cast to fp16 that overflowed); download or convert again"
        )
    vector = tensor.ndim == 1 and not entry.name.endswith("linear_attn.norm.weight")
    if low == 0 and high == 0 and not vector:
        raise WeightError(
            f"{entry.file}: {entry.name} is all zero, expected trained values (usual "
            "cause: a file written before its weights); download or convert again"
        )


def _prefixed(
    prefix: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    return {prefix + name: shape for name, shape in shapes.items()}


def _block(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden, config.intermediate
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def _delta(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    hidden, heads, channels = config.hidden, config.value_heads, config.conv_channels
    values = heads * config.value_dim
    shapes = {
        "in_proj_qkv.weight": (channels, hidden),
        "in_proj_z.weight": (values, hidden),
        "in_proj_b.weight": (heads, hidden),
        "in_proj_a.weight": (heads, hidden),
        "conv1d.weight": (channels, 1, config.conv),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (config.value_dim,),
        "out_proj.weight": (hidden, values),
    }
    return _prefixed("linear_attn.", shapes)


def _attention(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    hidden, size = config.hidden, config.head_dim
    queries, keys = config.heads * size, config.kv_heads * size
    shapes = {
        "q_proj.weight": (2 * queries, hidden),
        "k_proj.weight": (keys, hidden),
        "v_proj.weight": (keys, hidden),
        "o_proj.weight": (hidden, queries),
        "q_norm.weight": (size,),
        "k_norm.weight": (size,),
    }
    return _prefixed("self_attn.", shapes)


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _cause(missing: Sequence[str]) -> str:
    if missing == ["lm_head.weight"]:
        return "usual cause: a tied model whose config lacks tie_word_embeddings true"
    if all(name.startswith("mtp.") for name in missing):
        return "usual cause: a converter that kept a part of mtp.*; keep all or none"
    return "usual cause: a shard that was not downloaded, or a stale index"
