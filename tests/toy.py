"""A small random hybrid checkpoint in the layout of published Qwen3.5 files.

Four layers (GDN, GDN, full, GDN), hidden 64, vocabulary 128, one MTP head; key and
value dims differ, so that a swapped axis does not go unseen. The dicts are Hugging
Face's: the same values load into transformers' `Qwen3_5ForCausalLM`.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor


def toy_config_dict(**over: Any) -> dict[str, Any]:
    """Return the flat `config.json` of the toy model, with keys replaced by `over`."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": None,
        "dtype": "float32",
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "layer_types": [
            "linear_attention",
            "linear_attention",
            "full_attention",
            "linear_attention",
        ],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 16,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 512,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "output_gate_type": "swish",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
        "vocab_size": 128,
    }
    return config | over


class Draw(NamedTuple):
    """Draws tensors on its generator's device; vectors in fp32, matrices in `dtype`."""

    random: torch.Generator
    dtype: torch.dtype

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        device = self.random.device
        return torch.randn(*shape, generator=self.random, device=device, dtype=dtype)

    def uniform(self, size: int) -> Tensor:
        return torch.rand(size, generator=self.random, device=self.random.device)

    def matrix(self, rows: int, columns: int) -> Tensor:
        return self.normal(rows, columns, dtype=self.dtype).mul_(
            0.6 / math.sqrt(columns)
        )

    def norm(self, size: int) -> Tensor:
        return self.normal(size) * 0.1


def toy_state_dict(
    config_dict: Mapping[str, Any],
    seed: int,
    mtp: bool = True,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Draw weights under Hugging Face's names (`model.` prefix).

    The trunk's values depend on `seed`, `dtype` and `device` alone: `mtp` adds tensors
    and changes none. A tied config gets no `lm_head.weight`. Matrices are drawn in
    `dtype` on `device`: those of real sizes have no room for a detour.
    """
    config = config_dict.get("text_config", config_dict)
    tied = config_dict.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    random = Draw(torch.Generator(device).manual_seed(seed), dtype)
    tensors = {"model.embed_tokens.weight": random.matrix(vocab, hidden)}
    for index, kind in enumerate(config["layer_types"]):
        tensors |= _layer(random, config, f"model.layers.{index}.", kind)
    tensors["model.norm.weight"] = random.norm(hidden)
    if not tied:
        tensors["lm_head.weight"] = random.matrix(vocab, hidden)
    if mtp:
        tensors["mtp.fc.weight"] = random.matrix(hidden, 2 * hidden)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            tensors[f"mtp.{name}.weight"] = random.norm(hidden)
        tensors |= _layer(random, config, "mtp.layers.0.", "full_attention")
    return tensors


def write_checkpoint(
    path: Path,
    config_dict: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    shards: int = 1,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint folder; two shards or more come with an index.

    `generation` becomes `generation_config.json`; without it there is no such file.
    Returns `path`.
    """
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(dict(config_dict), indent=2))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(dict(generation)))
    if shards == 1:
        save_file(dict(tensors), path / "model.safetensors", {"format": "pt"})
        return path
    names = list(tensors)
    size = math.ceil(len(names) / shards)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        part = names[shard * size : (shard + 1) * size]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in part}, path / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return path


def _layer(
    random: Draw, config: Mapping[str, Any], prefix: str, kind: str
) -> dict[str, Tensor]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    linear = kind == "linear_attention"
    mixer = _delta(random, config) if linear else _attention(random, config)
    tensors = {
        "input_layernorm.weight": random.norm(hidden),
        "post_attention_layernorm.weight": random.norm(hidden),
        "mlp.gate_proj.weight": random.matrix(inner, hidden),
        "mlp.up_proj.weight": random.matrix(inner, hidden),
        "mlp.down_proj.weight": random.matrix(hidden, inner),
    }
    return {prefix + name: tensor for name, tensor in (tensors | mixer).items()}


def _delta(random: Draw, config: Mapping[str, Any]) -> dict[str, Tensor]:
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    channels, taps = 2 * keys + values, config["linear_conv_kernel_dim"]
    decay = 1 + 15 * random.uniform(heads)
    low, high = math.log(0.001), math.log(0.1)
    step = torch.exp(low + (high - low) * random.uniform(heads))
    gain = 1 + random.norm(config["linear_value_head_dim"])
    return {
        "linear_attn.in_proj_qkv.weight": random.matrix(channels, hidden),
        "linear_attn.in_proj_z.weight": random.matrix(values, hidden),
        "linear_attn.in_proj_b.weight": random.matrix(heads, hidden),
        "linear_attn.in_proj_a.weight": random.matrix(heads, hidden),
        "linear_attn.conv1d.weight": 0.3 * random.normal(channels, 1, taps),
        "linear_attn.A_log": torch.log(decay),
        "linear_attn.dt_bias": step + torch.log(-torch.expm1(-step)),
        "linear_attn.norm.weight": gain,
        "linear_attn.out_proj.weight": random.matrix(hidden, values),
    }


def _attention(random: Draw, config: Mapping[str, Any]) -> dict[str, Tensor]:
    hidden, size = config["hidden_size"], config["head_dim"]
    queries = config["num_attention_heads"] * size
    keys = config["num_key_value_heads"] * size
    return {
        "self_attn.q_proj.weight": random.matrix(2 * queries, hidden),
        "self_attn.k_proj.weight": random.matrix(keys, hidden),
        "self_attn.v_proj.weight": random.matrix(keys, hidden),
        "self_attn.o_proj.weight": random.matrix(hidden, queries),
        "self_attn.q_norm.weight": random.norm(size),
        "self_attn.k_norm.weight": random.norm(size),
    }
