"""What a target checkpoint's `config.json` says, as one hashable value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fspec.errors import ConfigError, UnsupportedError
from fspec.fields import Fields, agreed, read_fields
from fspec.rope_config import RopeConfig, read_rope

LayerKind = Literal["linear_attention", "full_attention"]


@dataclass(frozen=True)
class TargetConfig:
    """Sizes of a dense Qwen3.5-style hybrid; every count is in units, not bytes."""

    layer_kinds: tuple[LayerKind, ...]
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    eps: float
    tied: bool
    mtp_layers: int
    max_positions: int
    eos_ids: tuple[int, ...]
    rope: RopeConfig

    @property
    def full_layers(self) -> int:
        """Number of full-attention layers."""
        return self.layer_kinds.count("full_attention")

    @property
    def delta_layers(self) -> int:
        """Number of Gated DeltaNet layers."""
        return self.layer_kinds.count("linear_attention")

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: q, k and v of all heads side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


_SUPPORTED = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
_MODEL_TYPES = ("qwen3_5", "qwen3_5_text")
_KINDS: tuple[LayerKind, LayerKind] = ("linear_attention", "full_attention")


def read_config(path: Path) -> TargetConfig:
    """Return the config of the checkpoint folder `path`; no weight is read.

    Keys may stand under `text_config` or at the root. `max_positions` is
    `max_position_embeddings`, or YaRN's factor times original length if that is more.
    `eos_ids` are the text config's ids, then those of `generation_config.json`.

    Args:
        path: folder with `config.json` and, optionally, `generation_config.json`.

    Raises:
        ConfigError: a file or key is missing, malformed or contradicts another.
        UnsupportedError: another architecture, or a setting that fspec does not do.
    """
    root, text = _sections(path)
    _check_sizes(text)
    head_dim = text.size("head_dim")
    rope = read_rope(text, head_dim)
    reach = int(rope.factor * rope.original_max)
    tie = agreed((root, text), "tie_word_embeddings") or root
    return TargetConfig(
        layer_kinds=_layer_kinds(text),
        hidden=text.size("hidden_size"),
        intermediate=text.size("intermediate_size"),
        vocab=text.size("vocab_size"),
        heads=text.size("num_attention_heads"),
        kv_heads=text.size("num_key_value_heads"),
        head_dim=head_dim,
        key_heads=text.size("linear_num_key_heads"),
        value_heads=text.size("linear_num_value_heads"),
        key_dim=text.size("linear_key_head_dim"),
        value_dim=text.size("linear_value_head_dim"),
        conv=text.size("linear_conv_kernel_dim"),
        eps=text.number("rms_norm_eps", least=0.0),
        tied=tie.flag("tie_word_embeddings", default=False),
        mtp_layers=_mtp_layers(text),
        max_positions=max(text.size("max_position_embeddings"), reach),
        eos_ids=_eos_ids(text, path / "generation_config.json"),
        rope=rope,
    )


def _sections(path: Path) -> tuple[Fields, Fields]:
    """Return the root of `config.json` and its text config, both supported."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; expected a checkpoint folder")
    root = read_fields(path / "config.json")
    _check_architecture(root)
    text = root.section("text_config") or root
    _check_settings(root, text)
    return root, text


def _check_architecture(root: Fields) -> None:
    names = root.require("architectures")
    if not isinstance(names, list) or not names:
        raise root.wrong("architectures", names, "a list of class names")
    if any(name not in _SUPPORTED for name in names):
        raise UnsupportedError(
            f"{root.where}: architectures {names} are not supported; supported: "
            f"{', '.join(_SUPPORTED)}"
        )
    text = root.section("text_config")
    for place in (root, text) if text else (root,):
        kind = place.require("model_type") if place is root else place.get("model_type")
        if kind is not None and kind not in _MODEL_TYPES:
            raise UnsupportedError(
                f"{place.where}: model_type {kind!r} is not supported; supported: "
                f"{', '.join(_MODEL_TYPES)}"
            )


def _check_settings(root: Fields, text: Fields) -> None:
    for place in (root, text):
        for key in ("quantization_config", "compression_config"):
            if place.get(key) is not None:
                raise UnsupportedError(
                    f"{place.where}: {key} is set, and quantised checkpoints are not "
                    "supported yet; use the bf16, fp16 or fp32 checkpoint"
                )
    allowed: dict[str, tuple[Any, ...]] = {
        "attention_bias": (False,),
        "hidden_act": ("silu",),
        "output_gate_type": ("swish", "silu"),
        "attn_output_gate": (True,),
        "mtp_use_dedicated_embeddings": (False,),
    }
    for key, values in allowed.items():
        value = text.get(key)
        if value is not None and value not in values:
            raise UnsupportedError(
                f"{text.where}: {key} {value!r} is not supported; supported: "
                f"{', '.join(map(repr, values))}"
            )


def _layer_kinds(text: Fields) -> tuple[LayerKind, ...]:
    count = text.size("num_hidden_layers")
    regular: tuple[LayerKind, ...] | None = None
    if text.get("full_attention_interval") is not None:
        interval = text.size("full_attention_interval")
        regular = tuple(_KINDS[(i + 1) % interval == 0] for i in range(count))
        if text.get("layer_types") is None:
            return regular
    names = text.require("layer_types")
    if not isinstance(names, list) or len(names) != count:
        raise text.wrong("layer_types", names, f"a list of num_hidden_layers={count}")
    for name in names:
        if name not in _KINDS:
            raise UnsupportedError(
                f"{text.where}: layer type {name!r} is not supported; supported: "
                f"{', '.join(_KINDS)}"
            )
    kinds: tuple[LayerKind, ...] = tuple(_KINDS[_KINDS.index(name)] for name in names)
    if regular is not None and kinds != regular:
        raise ConfigError(
            f"{text.where}: layer_types contradicts full_attention_interval "
            f"{text.get('full_attention_interval')}; remove the wrong one"
        )
    return kinds


def _mtp_layers(text: Fields) -> int:
    key = "mtp_num_hidden_layers"
    count = text.get(key)
    if count is None:
        return 0
    if type(count) is not int or count < 0:
        raise text.wrong(key, count, "0 or 1")
    if count > 1:
        raise UnsupportedError(f"{text.where}: {key} {count}; supported: 0 or 1")
    return count


def _eos_ids(text: Fields, generation: Path) -> tuple[int, ...]:
    places = [text]
    if generation.exists():
        places.append(read_fields(generation))
    vocab = text.size("vocab_size")
    ids: list[int] = []
    for place in places:
        value = place.get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        for token in found:
            if type(token) is not int or not 0 <= token < vocab:
                raise place.wrong("eos_token_id", value, f"ids from 0 to {vocab - 1}")
        ids += found
    return tuple(dict.fromkeys(ids))


def _check_sizes(text: Fields) -> None:
    pairs = (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    )
    for key, group in pairs:
        count, groups = text.size(key), text.size(group)
        if count % groups:
            raise text.wrong(key, count, f"a multiple of {group} ({groups})")
    if text.number("rms_norm_eps", least=0.0) == 0.0:
        raise text.wrong("rms_norm_eps", 0, "a number > 0")
