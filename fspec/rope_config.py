"""Rotary embedding: its settings in `config.json`, and its frequencies.

Source: transformers 5.24, `modeling_rope_utils.py`; YaRN, arXiv:2309.00071.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fspec.errors import ConfigError, UnsupportedError
from fspec.fields import Fields, agreed

# Qwen3_5TextConfig's default where no file states the factor.
_PARTIAL = 0.25
_YARN_KEYS = frozenset(
    {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    }
)
_COMMON_KEYS = frozenset(
    {
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "mrope_section",
        "mrope_interleaved",
    }
)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of the first `dim` of a head's dims, plain or YaRN.

    `factor`, `original_max` and what follows matter for `kind == "yarn"` only.
    `attention_factor` is final: it multiplies both cos and sin, once.
    """

    kind: Literal["default", "yarn"]
    theta: float
    dim: int
    factor: float = 1.0
    original_max: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


def read_rope(text: Fields, head_dim: int) -> RopeConfig:
    """Return the rotary settings of a text config.

    They stand in `rope_parameters`, or in the older `rope_scaling` + `rope_theta`.
    For text the three axes of mRoPE carry one position, so its keys change nothing.

    Args:
        text: the text config, with `rope_*` keys and `max_position_embeddings`.
        head_dim: dims of an attention head; the rotary dim is a part of it.

    Raises:
        ConfigError: a key is missing, out of range, or given twice with two values;
            or YaRN keys are given without `rope_type: yarn` or `factor`.
        UnsupportedError: another `rope_type`, or a key that fspec does not know.
    """
    rope = _rope_section(text)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "yarn"):
        raise UnsupportedError(
            f"{rope.where}: rope_type {kind!r} is not supported; supported: default, "
            "yarn"
        )
    _check_keys(rope, kind)
    theta = agreed((rope, text), "rope_theta") or rope
    dim = _rotary_dim(rope, text, head_dim)
    base = theta.number("rope_theta", least=1.0)
    if base == 1.0:
        raise rope.wrong("rope_theta", base, "a number > 1")
    if kind == "yarn":
        return _read_yarn(rope, text, base, dim)
    return RopeConfig("default", base, dim)


def inverse_frequencies(rope: RopeConfig) -> Float[Tensor, " half"]:
    """Return the angle per position (radians, float32) of each pair of rotary dims.

    Pair i is dims (i, i + half). The bits are those of transformers on CPU.

    Source: YaRN, arXiv:2309.00071, section 3.2; transformers 5.24,
    `_compute_yarn_parameters`.
    """
    steps = torch.arange(0, rope.dim, 2, dtype=torch.float32)
    periods = rope.theta ** (steps / rope.dim)
    plain = 1.0 / periods
    if rope.kind == "default":
        return plain
    low = _turn_dim(rope, rope.beta_fast)
    high = _turn_dim(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # the ramp has no width: keep its slope finite
    pairs = torch.arange(rope.dim // 2, dtype=torch.float32)
    keep = 1 - torch.clamp((pairs - low) / (high - low), 0, 1)
    return 1.0 / (rope.factor * periods) * (1 - keep) + plain * keep


def _turn_dim(rope: RopeConfig, turns: float) -> float:
    """Return the dim whose wave turns `turns` times in the original length."""
    waves = rope.original_max / (turns * 2 * math.pi)
    return (rope.dim * math.log(waves)) / (2 * math.log(rope.theta))


def _rope_section(text: Fields) -> Fields:
    found = [text.section(key) for key in ("rope_parameters", "rope_scaling")]
    filled = [section for section in found if section is not None and section.values]
    if len(filled) == 2 and filled[0].values != filled[1].values:
        raise ConfigError(
            f"{text.where}: rope_parameters and rope_scaling differ; keep "
            "rope_parameters and put everything there"
        )
    return filled[0] if filled else Fields({}, text.where)


def _check_keys(rope: Fields, kind: str) -> None:
    given = {key for key, value in rope.values.items() if value is not None}
    unknown = sorted(given - _YARN_KEYS - _COMMON_KEYS)
    if unknown:
        raise UnsupportedError(
            f"{rope.where}: keys {unknown} are not known to fspec; remove them if the "
            "model was not trained with them"
        )
    if kind == "default" and given & _YARN_KEYS:
        raise ConfigError(
            f"{rope.where}: {sorted(given & _YARN_KEYS)} given without rope_type "
            "'yarn'; set rope_type to 'yarn' or remove these keys"
        )


def _rotary_dim(rope: Fields, text: Fields, head_dim: int) -> int:
    key = "partial_rotary_factor"
    place = agreed((rope, text), key)
    part = place.number(key, least=0.0) if place else _PARTIAL
    dim = int(head_dim * part)
    if dim < 2 or dim % 2 or dim > head_dim:
        raise ConfigError(
            f"{rope.where}: {key} {part:g} of head_dim {head_dim} gives rotary dim "
            f"{dim}, expected an even number from 2 to {head_dim}"
        )
    return dim


def _read_yarn(rope: Fields, text: Fields, theta: float, dim: int) -> RopeConfig:
    key = "original_max_position_embeddings"
    place = agreed((rope, text), key)
    native = (
        place.size(key) if place is not None else text.size("max_position_embeddings")
    )
    if place is not None and "factor" in rope.values and rope.get("factor") is None:
        factor = text.size("max_position_embeddings") / native
        if factor < 1:
            raise rope.wrong(key, native, "at most max_position_embeddings")
    else:
        factor = rope.number("factor", least=1.0)
    fast = _turns(rope, "beta_fast", 32.0)
    slow = _turns(rope, "beta_slow", 1.0)
    if fast < slow:
        raise rope.wrong("beta_fast", fast, f"at least beta_slow ({slow:g})")
    return RopeConfig(
        kind="yarn",
        theta=theta,
        dim=dim,
        factor=factor,
        original_max=native,
        beta_fast=fast,
        beta_slow=slow,
        truncate=rope.flag("truncate", True),
        attention_factor=_attention_factor(rope, factor),
    )


def _turns(rope: Fields, key: str, default: float) -> float:
    if rope.get(key) is None:
        return default
    turns = rope.number(key, least=0.0)
    if turns == 0.0:
        raise rope.wrong(key, turns, "a number > 0")
    return turns


def _attention_factor(rope: Fields, factor: float) -> float:
    """Return the final multiplier of cos and sin, by transformers' rule."""
    if rope.get("attention_factor") is not None:
        given = rope.number("attention_factor", least=0.0)
        if given == 0.0:
            raise rope.wrong("attention_factor", given, "a number > 0")
        return given
    scales = [
        rope.number(key, least=0.0) if rope.get(key) is not None else 0.0
        for key in ("mscale", "mscale_all_dim")
    ]
    if all(scales):
        return _log_scale(factor, scales[0]) / _log_scale(factor, scales[1])
    return _log_scale(factor, 1.0)


def _log_scale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
