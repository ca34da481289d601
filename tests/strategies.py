"""Hypothesis strategies: small hybrid configs, lengths, tokens; how many examples."""

import os
import random
from typing import Any

from hypothesis import strategies as st

# Lengths at and beside the multiples of 16 (fspec) and 64 (transformers).
EDGES = (1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 80, 81)
LONG_EDGES = (95, 96, 97, 127, 128, 129, 130)


def examples(n: int) -> int:
    """Scale `n` by FSPEC_EXAMPLES / 25: 25 for a quick run, 250 for a night."""
    return max(1, n * int(os.environ.get("FSPEC_EXAMPLES", "25")) // 25)


def lengths(minimum: int = 1, maximum: int = 81) -> st.SearchStrategy[int]:
    """Numbers of tokens, most of them at an edge of a chunk."""
    edges = [n for n in EDGES + LONG_EDGES if minimum <= n <= maximum]
    return st.one_of(st.sampled_from(edges), st.integers(minimum, maximum))


@st.composite
def layer_kinds(draw: st.DrawFn) -> list[str]:
    """Two to five layers with at least one of each kind, in any order."""
    count = draw(st.integers(2, 5))
    full = draw(st.integers(1, count - 1))
    kinds = ["full_attention"] * full + ["linear_attention"] * (count - full)
    return list(draw(st.permutations(kinds)))


@st.composite
def ropes(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """`rope_parameters` and `max_position_embeddings`: plain or YaRN."""
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": draw(st.sampled_from([100.0, 10000.0, 10000000.0])),
        "partial_rotary_factor": draw(st.sampled_from([0.25, 0.5, 1.0])),
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    }
    if draw(st.booleans()):
        return rope, 4096
    factor = draw(st.sampled_from([2.0, 3.0, 4.0, 8.0]))
    original = draw(st.sampled_from([32, 48, 64]))
    extras: list[dict[str, Any]] = [
        {},
        {"beta_fast": 4.0, "beta_slow": 0.5},
        {"truncate": False},
        {"attention_factor": 1.25},
        {"mscale": 1.0, "mscale_all_dim": 0.5},
    ]
    yarn = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        **draw(st.sampled_from(extras)),
    }
    return rope | yarn, int(factor * original)


@st.composite
def configs(draw: st.DrawFn, conv: tuple[int, ...] = (4, 4, 2, 3)) -> dict[str, Any]:
    """HF-style text configs of small hybrids; sizes are often unequal and odd."""
    kinds = draw(layer_kinds())
    rope, positions = draw(ropes())
    kv_heads = draw(st.integers(1, 3))
    key_heads = draw(st.integers(1, 3))
    dims = [8, 12, 16, 20, 24, 32]
    key_dim = draw(st.integers(0, 5))
    value_dim = (key_dim + draw(st.sampled_from([1, 5, 2, 4, 3, 0]))) % 6
    return {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "layer_types": kinds,
        "num_hidden_layers": len(kinds),
        "hidden_size": draw(st.sampled_from([32, 40, 48, 56, 64, 72, 96])),
        "intermediate_size": draw(st.sampled_from([32, 44, 64, 88, 128])),
        "vocab_size": draw(st.integers(61, 260)),
        "num_attention_heads": kv_heads * draw(st.integers(1, 3)),
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([16, 24, 32, 40, 64])),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw(st.integers(1, 3)),
        "linear_key_head_dim": dims[key_dim],
        "linear_value_head_dim": dims[value_dim],
        "linear_conv_kernel_dim": draw(st.sampled_from(conv)),
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": positions,
        "rope_parameters": rope,
        "tie_word_embeddings": draw(st.booleans()),
        "mtp_num_hidden_layers": 1,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": None,
        "dtype": "float32",
    }


@st.composite
def token_lists(draw: st.DrawFn, vocab: int, count: int) -> list[int]:
    """`count` ids below `vocab`, all from one drawn seed: cheap to draw and shrink."""
    source = random.Random(draw(st.integers(0, 2**20)))
    return [source.randrange(vocab) for _ in range(count)]
