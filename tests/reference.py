"""The target and its MTP head once more: float64, one token at a time, plain loops.

This file shares nothing with fspec. It reads a HF-style text config (a dict) and
tensors under their HF names, with or without `model.` in front, and is obvious rather
than fast. Whatever a test calls the true value is computed here.

Everything is float64 except the RoPE angles. Those are *defined* as transformers
computes them: inverse frequencies in float32, times the position in float32. One
float32 ulp of a frequency turns the angle of position 1,000 by 6e-5, so this rounding
is part of the model's meaning and not an implementation's error. cos and sin of that
float32 angle, and all that follows, beta and decay included, are float64.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

Config = dict[str, Any]
Weights = dict[str, Tensor]
Past = dict[str, list[Tensor]]  # what a layer has seen: its rows, oldest first


class Trace(NamedTuple):
    """What a run over t tokens left behind; lists go by layer of the named kind."""

    logits: Tensor  # [t, n]
    hidden: Tensor  # [t, d], after the final norm
    features: list[Tensor]  # every layer: residual stream behind it, [t, d]
    k: list[Tensor]  # full layers: rotated keys, [t, kv_heads, head_dim]
    v: list[Tensor]  # full layers: values, [t, kv_heads, head_dim]
    states: list[Tensor]  # linear layers: S at length i, [t + 1, h, key_dim, value_dim]
    raw: list[Tensor]  # linear layers: rows before the convolution, [t, channels]
    b: list[Tensor]  # linear layers: beta logits, [t, h]
    a: list[Tensor]  # linear layers: decay logits, [t, h]


class Row(NamedTuple):
    """What the delta rule reads of one token."""

    window: Tensor  # newest raw rows, its own last, zeros before 0: [conv, channels]
    b: Tensor
    a: Tensor


class Chain(NamedTuple):
    """Chained MTP steps after a committed prefix."""

    drafts: list[int]  # the lowest id of the largest logit, step by step
    logits: Tensor  # [steps, n]
    k: Tensor  # MTP rows of positions 0.., those of the chain included
    v: Tensor


def double(tensors: Weights) -> Weights:
    """The tensors in float64, which is exact, named without `model.`."""
    return {name.removeprefix("model."): t.double() for name, t in tensors.items()}


# -- rotary embedding ----------------------------------------------------------------


def inverse_frequencies(config: Config) -> tuple[Tensor, float]:
    """Float32 inverse frequencies and the factor on cos and sin, plain or YaRN."""
    rope = config["rope_parameters"]
    dim = int(config["head_dim"] * rope["partial_rotary_factor"])
    base = rope["rope_theta"]
    powers = base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope["rope_type"] == "default":
        return 1.0 / powers, 1.0
    assert rope["rope_type"] == "yarn"
    factor, original = rope["factor"], rope["original_max_position_embeddings"]

    def turning(rotations: float) -> float:  # index that turns so often in `original`
        turns = original / (rotations * 2 * math.pi)
        return (dim * math.log(turns)) / (2 * math.log(base))

    low = turning(rope.get("beta_fast", 32))
    high = turning(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    index = torch.arange(dim // 2, dtype=torch.float32)
    keep = 1 - torch.clamp((index - low) / (high - low), 0, 1)
    inverse = (1.0 / (factor * powers)) * (1 - keep) + (1.0 / powers) * keep
    if "attention_factor" in rope:
        return inverse, rope["attention_factor"]
    over, under = (  # both mscales are given or none: then 0.1 ln(factor) + 1
        0.1 * weight * math.log(factor) + 1.0
        for weight in (rope.get("mscale", 1.0), rope.get("mscale_all_dim", 0.0))
    )
    return inverse, over / under


def rotate(config: Config, x: Tensor, position: int) -> Tensor:
    """Rotate pairs (i, i + dim / 2) of the first dims of every head; the rest stay."""
    inverse, factor = inverse_frequencies(config)
    angle = (torch.tensor(float(position)) * inverse).double()  # float32 product
    cos, sin = angle.cos() * factor, angle.sin() * factor
    half = len(inverse)
    a, b, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


# -- parts of a layer ----------------------------------------------------------------


def rms(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def norm(weights: Weights, name: str, config: Config, x: Tensor) -> Tensor:
    """RMSNorm whose stored weight is the distance from one."""
    return rms(x, config["rms_norm_eps"]) * (1 + weights[f"{name}.weight"])


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return weights[f"{name}.weight"] @ x


def mlp(weights: Weights, name: str, x: Tensor) -> Tensor:
    gate = silu(linear(weights, f"{name}.gate_proj", x))
    product = gate * linear(weights, f"{name}.up_proj", x)
    return linear(weights, f"{name}.down_proj", product)


def attend(
    weights: Weights, name: str, config: Config, past: Past, x: Tensor, at: int
) -> Tensor:
    """Gated causal attention of the row at position `at`; appends its k and v."""
    heads, dim = config["num_attention_heads"], config["head_dim"]
    group = heads // config["num_key_value_heads"]
    rows = linear(weights, f"{name}.q_proj", x).reshape(heads, 2 * dim)
    q, gate = rows[:, :dim], rows[:, dim:]
    k = linear(weights, f"{name}.k_proj", x).reshape(-1, dim)
    v = linear(weights, f"{name}.v_proj", x).reshape(-1, dim)
    q = rotate(config, norm(weights, f"{name}.q_norm", config, q), at)
    k = rotate(config, norm(weights, f"{name}.k_norm", config, k), at)
    past["k"].append(k)
    past["v"].append(v)
    keys, values = torch.stack(past["k"]), torch.stack(past["v"])
    outputs = []
    for head in range(heads):
        scores = keys[:, head // group] @ q[head] / math.sqrt(dim)
        weight = torch.exp(scores - scores.max())
        outputs.append(weight / weight.sum() @ values[:, head // group])
    gated = torch.cat(outputs) * torch.sigmoid(gate.reshape(-1))
    return linear(weights, f"{name}.o_proj", gated)


def delta_step(
    weights: Weights, name: str, config: Config, state: Tensor, row: Row
) -> tuple[Tensor, Tensor]:
    """One token of the gated delta rule: the new S and the heads' outputs."""
    key_heads, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    value_heads = config["linear_num_value_heads"]
    taps = weights[f"{name}.conv1d.weight"][:, 0]  # [channels, conv]
    mixed = silu((row.window.T * taps).sum(-1))
    q, k = mixed[: 2 * key_heads * key_dim].reshape(2, key_heads, key_dim)
    v = mixed[2 * key_heads * key_dim :].reshape(value_heads, -1)
    owner = [head // (value_heads // key_heads) for head in range(value_heads)]
    q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = q[owner] / math.sqrt(key_dim), k[owner]
    rate = torch.exp(weights[f"{name}.A_log"])
    step = row.a + weights[f"{name}.dt_bias"]
    softplus = torch.clamp(step, min=0) + torch.log1p(torch.exp(-step.abs()))
    state = state * torch.exp(-rate * softplus)[:, None, None]  # decay
    predicted = (state * k[:, :, None]).sum(1)
    error = torch.sigmoid(row.b)[:, None] * (v - predicted)
    state = state + k[:, :, None] * error[:, None, :]  # write
    return state, (state * q[:, :, None]).sum(1)  # read


def window_at(config: Config, raw: list[Tensor], at: int) -> Tensor:
    """The raw rows that the convolution of position `at` sees."""
    first = at + 1 - config["linear_conv_kernel_dim"]
    zero = torch.zeros_like(raw[0])
    return torch.stack([raw[i] if i >= 0 else zero for i in range(first, at + 1)])


def delta(
    weights: Weights, name: str, config: Config, past: Past, x: Tensor, at: int
) -> Tensor:
    """The Gated DeltaNet mixer for the row at position `at`; appends its rows and S."""
    heads = config["linear_num_value_heads"]
    past["raw"].append(linear(weights, f"{name}.in_proj_qkv", x))
    past["b"].append(linear(weights, f"{name}.in_proj_b", x))
    past["a"].append(linear(weights, f"{name}.in_proj_a", x))
    row = Row(window_at(config, past["raw"], at), past["b"][-1], past["a"][-1])
    state, out = delta_step(weights, name, config, past["states"][-1], row)
    past["states"].append(state)
    z = linear(weights, f"{name}.in_proj_z", x).reshape(heads, -1)
    out = rms(out, config["rms_norm_eps"]) * weights[f"{name}.norm.weight"] * silu(z)
    return linear(weights, f"{name}.out_proj", out.reshape(-1))


def decoder(
    weights: Weights, name: str, config: Config, past: Past, x: Tensor, at: int
) -> Tensor:
    """One layer of either kind, by what it remembers."""
    inner = norm(weights, f"{name}.input_layernorm", config, x)
    if "k" in past:
        x = x + attend(weights, f"{name}.self_attn", config, past, inner, at)
    else:
        x = x + delta(weights, f"{name}.linear_attn", config, past, inner, at)
    inner = norm(weights, f"{name}.post_attention_layernorm", config, x)
    return x + mlp(weights, f"{name}.mlp", inner)


def head(weights: Weights, config: Config, hidden: Tensor) -> Tensor:
    name = "embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return linear(weights, name, hidden)


def empty(config: Config, kind: str) -> Past:
    """The history of a layer before its first token."""
    if kind == "full_attention":
        return {"k": [], "v": []}
    sizes = ("num_value_heads", "key_head_dim", "value_head_dim")
    shape = [config[f"linear_{size}"] for size in sizes]
    zero = torch.zeros(shape, dtype=torch.float64)
    return {"states": [zero], "raw": [], "b": [], "a": []}


# -- the two models ------------------------------------------------------------------


def run(config: Config, tensors: Weights, tokens: list[int]) -> Trace:
    """Run the target over `tokens`, one at a time, from nothing."""
    weights = double(tensors)
    kinds = config["layer_types"]
    pasts = [empty(config, kind) for kind in kinds]
    logits, hidden, features = [], [], [[] for _ in kinds]
    for at, token in enumerate(tokens):
        x = weights["embed_tokens.weight"][token]
        for layer, past in enumerate(pasts):
            x = decoder(weights, f"layers.{layer}", config, past, x, at)
            features[layer].append(x)
        hidden.append(norm(weights, "norm", config, x))
        logits.append(head(weights, config, hidden[-1]))

    def gather(name: str) -> list[Tensor]:
        return [torch.stack(past[name]) for past in pasts if name in past]

    return Trace(
        torch.stack(logits),
        torch.stack(hidden),
        [torch.stack(rows) for rows in features],
        *map(gather, ("k", "v", "states", "raw", "b", "a")),
    )


def mtp_row(
    weights: Weights, config: Config, past: Past, h: Tensor, token: int, at: int
) -> Tensor:
    """The MTP row of the pair (`h` of position `at`, the token that follows it)."""
    embedding = weights["embed_tokens.weight"][token]
    left = norm(weights, "mtp.pre_fc_norm_embedding", config, embedding)
    right = norm(weights, "mtp.pre_fc_norm_hidden", config, h)
    x = linear(weights, "mtp.fc", torch.cat([left, right]))
    y = decoder(weights, "mtp.layers.0", config, past, x, at)
    return norm(weights, "mtp.norm", config, y)


def mtp_chain(
    config: Config,
    tensors: Weights,
    tokens: list[int],
    hidden: Tensor,
    boundary: int,
    steps: int,
    forced: list[int] | None = None,
) -> Chain:
    """Draft `steps` tokens after `tokens` (their `hidden` [t, d]) and `boundary`.

    Row i pairs the hidden of position i with the token at i + 1, so the last committed
    row takes `boundary`; its logits are the first draft's. Each later row takes the
    vector behind `mtp.norm` of the row before and the token just drafted, or the
    one that `forced`, `steps` tokens, names in its place (a near tie may flip drafts).
    """
    weights = double(tensors)
    past = empty(config, "full_attention")
    following = [*tokens[1:], boundary]
    rows, drafts, logits = [*hidden.double()], [], []
    for at in range(len(tokens) - 1 + steps):
        y = mtp_row(weights, config, past, rows[at], following[at], at)
        if at >= len(tokens) - 1:
            rows.append(y)
            logits.append(head(weights, config, y))
            drafts.append(int(logits[-1].argmax()))
            following.append((forced or drafts)[len(drafts) - 1])
    k, v = torch.stack(past["k"]), torch.stack(past["v"])
    return Chain(drafts, torch.stack(logits), k, v)
