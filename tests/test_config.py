"""`config.json` to `TargetConfig`: every key, every refusal, and RoPE against HF."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from fspec.config import RopeConfig, TargetConfig, read_config
from fspec.errors import ConfigError, UnsupportedError
from fspec.fields import Fields
from fspec.rope_config import inverse_frequencies, read_rope
from tests.toy import toy_config_dict

TINY = Path(__file__).parents[1] / "fspec" / "models" / "tiny" / "target"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "factor": 4.0,
    "original_max_position_embeddings": 262144,
}
REQUIRED = (
    "architectures model_type layer_types head_dim hidden_size intermediate_size "
    "linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads "
    "linear_num_value_heads linear_value_head_dim max_position_embeddings "
    "num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps vocab_size"
).split()
SIZES = [
    key
    for key in REQUIRED
    if key not in ("architectures", "model_type", "layer_types", "rms_norm_eps")
]


def write(path: Path, config: Any, generation: Any = None) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def nested(config: dict[str, Any], **root: Any) -> dict[str, Any]:
    text = {key: value for key, value in config.items() if key != "architectures"}
    wrapper = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "vision_config": {"depth": 2},
    }
    return wrapper | {"text_config": text} | root


def rope_of(rope: Any, head_dim: int = 256, **text: Any) -> RopeConfig:
    values = {"rope_parameters": rope, "max_position_embeddings": 262144} | text
    return read_rope(Fields(values, "config.json"), head_dim)


def hugging_face(rope: Any, **text: Any) -> tuple[torch.Tensor, float]:
    config = Qwen3_5TextConfig(rope_parameters=dict(rope), **text)
    module = Qwen3_5TextRotaryEmbedding(config)
    return module.inv_freq, module.attention_scaling


def test_toy_fields(tmp_path):
    expected = TargetConfig(
        layer_kinds=(
            "linear_attention",
            "linear_attention",
            "full_attention",
            "linear_attention",
        ),
        hidden=64,
        intermediate=96,
        vocab=128,
        heads=4,
        kv_heads=2,
        head_dim=16,
        key_heads=2,
        value_heads=4,
        key_dim=8,
        value_dim=16,
        conv=4,
        eps=1e-6,
        tied=False,
        mtp_layers=1,
        max_positions=512,
        eos_ids=(1,),
        rope=RopeConfig("default", 10000.0, 8),
    )
    got = read_config(write(tmp_path, toy_config_dict()))
    assert got == expected
    assert hash(got) == hash(expected)
    assert (got.full_layers, got.delta_layers, got.conv_channels) == (1, 3, 96)


def test_tiny_checkpoint():
    config = read_config(TINY)
    assert (config.hidden, config.vocab, config.full_layers) == (256, 4096, 4)
    assert config.layer_kinds[3] == "full_attention"
    assert (config.eos_ids, config.mtp_layers, config.tied) == ((0,), 1, False)
    assert config.rope == RopeConfig("default", 10000.0, 16)


def test_nested_equals_flat(tmp_path):
    flat = read_config(write(tmp_path, toy_config_dict()))
    assert read_config(write(tmp_path, nested(toy_config_dict()))) == flat


def test_what_transformers_saves_is_read(tmp_path):
    values = toy_config_dict()
    del values["model_type"]
    Qwen3_5TextConfig(**values).save_pretrained(tmp_path)
    assert read_config(tmp_path) == read_config(write(tmp_path, toy_config_dict()))


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("null", [False, True])
def test_missing_key_is_named(tmp_path, key, null):
    config = toy_config_dict(**{key: None})
    if not null:
        del config[key]
    with pytest.raises(ConfigError, match=rf"config\.json.*'{key}' is missing"):
        read_config(write(tmp_path, config))


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1, 4.0, "4", True, [4]])
def test_sizes_are_positive_integers(tmp_path, key, value):
    with pytest.raises(ConfigError, match=key):
        read_config(write(tmp_path, toy_config_dict(**{key: value})))


@pytest.mark.parametrize(
    ("over", "match"),
    [
        ({"num_attention_heads": 3}, "num_attention_heads is 3.*multiple of.*2"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads is 3.*multiple"),
        ({"num_hidden_layers": 5}, "layer_types.*num_hidden_layers=5"),
        ({"layer_types": "linear_attention"}, "layer_types"),
        ({"full_attention_interval": 4}, "contradicts full_attention_interval 4"),
        ({"full_attention_interval": 0}, "full_attention_interval is 0"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"architectures": []}, "architectures"),
        ({"architectures": "Qwen3_5ForCausalLM"}, "architectures"),
        ({"text_config": 3}, "text_config"),
        ({"mtp_num_hidden_layers": -1}, "mtp_num_hidden_layers"),
        ({"mtp_num_hidden_layers": True}, "mtp_num_hidden_layers"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": 128}, "eos_token_id is 128.*0 to 127"),
        ({"eos_token_id": [1, -1]}, "eos_token_id"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"rope_parameters": [1]}, "rope_parameters"),
    ],
)
def test_wrong_values(tmp_path, over, match):
    with pytest.raises(ConfigError, match=match):
        read_config(write(tmp_path, toy_config_dict(**over)))


@pytest.mark.parametrize(
    ("over", "match"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "Llama.*supported: Qwen3_5ForCausal"),
        ({"architectures": ["Qwen3_5MoeForCausalLM"]}, "Qwen3_5ForConditionalGenerat"),
        ({"model_type": "qwen3_next"}, "model_type 'qwen3_next'.*qwen3_5_text"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.*yet"),
        ({"compression_config": {"format": "x"}}, "compression_config"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid'.*swish"),
        ({"attn_output_gate": False}, "attn_output_gate False"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings True"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers 2; supported: 0 or 1"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer type 'sliding_attention'"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_unsupported_settings(tmp_path, over, match, wrapped):
    config = toy_config_dict(**over)
    if wrapped:
        root = (
            {"architectures": over["architectures"]} if "architectures" in over else {}
        )
        config = nested(config, **root)
    with pytest.raises(UnsupportedError, match=match):
        read_config(write(tmp_path, config))


def test_quantization_at_the_root_of_a_wrapper(tmp_path):
    config = nested(toy_config_dict(), quantization_config={"quant_method": "fp8"})
    with pytest.raises(UnsupportedError, match="quantised checkpoints"):
        read_config(write(tmp_path, config))


@pytest.mark.parametrize("gate", ["swish", "silu", None])
def test_optional_keys_have_their_defaults(tmp_path, gate):
    config = toy_config_dict(output_gate_type=gate)
    for key in (
        "attention_bias",
        "attn_output_gate",
        "eos_token_id",
        "hidden_act",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        "tie_word_embeddings",
    ):
        del config[key]
    got = read_config(write(tmp_path, config))
    assert (got.eos_ids, got.mtp_layers, got.tied) == ((), 0, False)


def test_interval_gives_the_layer_kinds(tmp_path):
    config = toy_config_dict(full_attention_interval=2)
    del config["layer_types"]
    kinds = read_config(write(tmp_path, config)).layer_kinds
    assert kinds == ("linear_attention", "full_attention") * 2
    config = toy_config_dict(full_attention_interval=2, layer_types=list(kinds))
    assert read_config(write(tmp_path, config)).layer_kinds == kinds


@pytest.mark.parametrize(
    ("text", "generation", "expected"),
    [
        (None, None, ()),
        (5, None, (5,)),
        (5, {}, (5,)),
        (None, {"eos_token_id": 6}, (6,)),
        (5, {"eos_token_id": [6, 5]}, (5, 6)),
        ([7, 5], {"eos_token_id": [5, 6, 6]}, (7, 5, 6)),
    ],
)
def test_eos_ids_are_the_ordered_union(tmp_path, text, generation, expected):
    config = toy_config_dict(eos_token_id=text)
    for layout in (config, nested(config)):
        assert read_config(write(tmp_path, layout, generation)).eos_ids == expected


@pytest.mark.parametrize(
    ("root", "text", "expected"),
    [(True, None, True), (None, True, True), (True, True, True), (None, None, False)],
)
def test_tie_flag_at_either_level(tmp_path, root, text, expected):
    config = nested(toy_config_dict(tie_word_embeddings=text))
    config["tie_word_embeddings"] = root
    assert read_config(write(tmp_path, config)).tied is expected


def test_tie_flag_that_differs_between_levels(tmp_path):
    config = nested(toy_config_dict(), tie_word_embeddings=True)
    with pytest.raises(
        ConfigError, match="tie_word_embeddings is True in.*text_config"
    ):
        read_config(write(tmp_path, config))


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="absent is not a folder"):
        read_config(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        read_config(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.json is not a folder"):
        read_config(write(tmp_path, {}) / "config.json")
    for text in ("{", "[]", "[" * 100000, "\xff"):
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"config\.json"):
            read_config(tmp_path)
    write(tmp_path, toy_config_dict())
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("over", "scale"),
    [
        ({"factor": 64, "attention_factor": 1.0}, 1.0),
        ({"factor": 4}, 1.138629436),
        ({"factor": 1}, 1.0),
        ({"factor": 128, "attention_factor": 1.485203}, 1.485203),
        ({"factor": 16, "mscale": 1, "mscale_all_dim": 1}, 1.0),
        ({"factor": 16, "mscale": 1}, 1.277259),
        ({"factor": 16, "mscale": 0.707, "mscale_all_dim": 1}, 0.936398),
        ({"factor": 16, "mscale": 0, "mscale_all_dim": 1}, 1.277259),
        ({"factor": 4, "attention_factor": None}, 1.138629436),
    ],
)
def test_attention_factor(over, scale):
    new = rope_of(YARN | over)
    assert new.attention_factor == pytest.approx(scale, abs=1e-6)
    assert new.attention_factor == hugging_face(YARN | over, head_dim=256)[1]
    old = {
        k: v for k, v in (YARN | over).items() if k not in ("rope_theta", "rope_type")
    }
    old["type"] = "yarn"
    assert rope_of(None, rope_scaling=old, rope_theta=1e7) == new


def test_yarn_of_the_27b():
    rope = rope_of(YARN | {"mrope_interleaved": True, "mrope_section": [11, 11, 10]})
    ratio = inverse_frequencies(rope) / inverse_frequencies(
        rope_of(YARN | {"factor": 1})
    )
    ramp = [0.9062, 0.8125, 0.7188, 0.625, 0.5312, 0.4375, 0.3438]
    expected = torch.tensor([1.0] * 15 + ramp + [0.25] * 10)
    assert torch.allclose(ratio, expected, atol=1e-4)


@pytest.mark.parametrize("native", [1, 6, 100])
def test_yarn_ramp_without_width(native):
    rope = YARN | {"original_max_position_embeddings": native}
    expected = hugging_face(rope, head_dim=256)[0]
    got = inverse_frequencies(rope_of(rope))
    assert torch.equal(got, expected)
    assert bool(torch.isfinite(got).all())


def test_yarn_lengthens_the_positions(tmp_path):
    rope = {k: v for k, v in YARN.items() if k != "partial_rotary_factor"}
    rope["original_max_position_embeddings"] = 64
    config = toy_config_dict(
        rope_parameters=rope, max_position_embeddings=64, partial_rotary_factor=0.5
    )
    assert read_config(write(tmp_path, config)).max_positions == 256
    config["max_position_embeddings"] = 1000
    assert read_config(write(tmp_path, config)).max_positions == 1000


def test_original_length_and_factor_as_transformers():
    bare = {k: v for k, v in YARN.items() if not k.startswith("original")}
    assert rope_of(bare).original_max == 262144
    key = "original_max_position_embeddings"
    beside = rope_of(bare, **{key: 4096})
    assert beside.original_max == 4096
    for rope, text in ((rope_of(bare), {}), (beside, {key: 4096})):
        text |= {"head_dim": 256, "max_position_embeddings": 262144}
        assert torch.equal(inverse_frequencies(rope), hugging_face(bare, **text)[0])
    rope = rope_of(YARN | {"factor": None}, max_position_embeddings=1048576)
    assert rope == rope_of(YARN)


@pytest.mark.parametrize(
    ("rope", "error", "match"),
    [
        ({"rope_type": "linear", "factor": 2.0}, UnsupportedError, "'linear'.*yarn"),
        ({"rope_type": "llama3"}, UnsupportedError, "llama3"),
        ({"type": "dynamic"}, UnsupportedError, "dynamic"),
        ({"rope_type": ["yarn"]}, UnsupportedError, "yarn"),
        ({"extrapolation_factor": 1.0}, UnsupportedError, "extrapolation_factor"),
        ({"full_attention": {}}, UnsupportedError, "full_attention"),
        ({"factor": 4.0}, ConfigError, r"\['factor'\] given without rope_type 'yarn'"),
        ({"attention_factor": 1.0}, ConfigError, "attention_factor"),
        ({"rope_type": "yarn"}, ConfigError, "'factor' is missing"),
        ({"rope_type": "yarn", "factor": None}, ConfigError, "'factor' is missing"),
        ({"rope_theta": None}, ConfigError, "'rope_theta' is missing"),
        ({"rope_theta": 1.0}, ConfigError, "rope_theta"),
        ({"rope_theta": "1e7"}, ConfigError, "rope_theta"),
        ({"partial_rotary_factor": 2.0}, ConfigError, "rotary dim 512"),
        ({"partial_rotary_factor": 0.0}, ConfigError, "rotary dim 0"),
        ({"partial_rotary_factor": 3 / 256}, ConfigError, "rotary dim 3"),
        (YARN | {"factor": 0.5}, ConfigError, "factor is 0.5"),
        (YARN | {"factor": True}, ConfigError, "factor is True"),
        (YARN | {"attention_factor": 0}, ConfigError, "attention_factor is 0"),
        (YARN | {"beta_fast": 0.5}, ConfigError, "beta_fast is 0.5.*beta_slow"),
        (YARN | {"beta_slow": 0}, ConfigError, "beta_slow is 0"),
        (YARN | {"mscale": -1}, ConfigError, "mscale is -1"),
        (YARN | {"truncate": 1}, ConfigError, "truncate is 1"),
        (
            YARN | {"factor": None, "original_max_position_embeddings": 300000},
            ConfigError,
            "at most max_position_embeddings",
        ),
    ],
)
def test_rope_refusals(rope, error, match):
    with pytest.raises(error, match=match):
        rope_of({"rope_theta": 1e7} | rope)


@pytest.mark.parametrize(
    "text",
    [
        {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        {"rope_theta": 1e4},
        {"partial_rotary_factor": 0.5},
        {"original_max_position_embeddings": 4096},
    ],
)
def test_rope_keys_given_twice(text):
    with pytest.raises(ConfigError, match=next(iter(text))):
        rope_of(YARN, **text)


def test_rope_keys_beside_the_section_and_the_default_part():
    plain = rope_of({"rope_type": "default", "rope_theta": 1e7})
    assert plain == RopeConfig("default", 1e7, 64)
    assert rope_of(None, rope_theta=10000000, partial_rotary_factor=0.25) == plain
    assert rope_of({}, rope_scaling=None, rope_theta=1e7) == plain


@settings(max_examples=150, deadline=None)
@given(
    head_dim=st.sampled_from([16, 64, 128, 256]),
    part=st.sampled_from([0.125, 0.25, 0.5, 1.0]),
    theta=st.sampled_from([100, 1e4, 5e5, 10000000]) | st.floats(2.0, 1e9),
    kind=st.sampled_from(["default", "yarn"]),
    factor=st.sampled_from([1, 2, 4.0, 3.853]) | st.floats(1.0, 1e3),
    native=st.integers(16, 1 << 20),
    slow=st.none() | st.floats(0.1, 8.0),
    fast=st.none() | st.floats(8.0, 100.0),
    truncate=st.none() | st.booleans(),
    mscale=st.none() | st.floats(0.0, 2.0),
    mscale_all_dim=st.none() | st.floats(0.0, 2.0),
)
def test_frequencies_equal_transformers(
    head_dim, part, theta, kind, factor, native, slow, fast, truncate, **scales
):
    rope = {"rope_type": kind, "rope_theta": theta, "partial_rotary_factor": part}
    if kind == "yarn":
        rope |= {"factor": factor, "original_max_position_embeddings": native}
        rope |= {"beta_slow": slow, "beta_fast": fast}
        rope |= scales | ({} if truncate is None else {"truncate": truncate})
    got = rope_of(rope, head_dim)
    frequencies, scale = hugging_face(rope, head_dim=head_dim)
    assert torch.equal(inverse_frequencies(got), frequencies)
    assert got.attention_factor == scale
