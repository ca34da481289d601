"""Where and on what a law runs: dtype, device, targets, sizes of what is drawn."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

LINEAR, FULL = "linear_attention", "full_attention"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
# small targets of odd shapes, as changes of `tests/toy.py`'s config
VARIANTS: tuple[dict, ...] = (
    {},
    {"num_attention_heads": 6, "head_dim": 24, "tie_word_embeddings": True},
    {"layer_types": [FULL, LINEAR, LINEAR, FULL], "num_key_value_heads": 1},
    {"hidden_size": 40, "linear_conv_kernel_dim": 3, "vocab_size": 61},
    {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "intermediate_size": 33},
    {"head_dim": 32, "rope_parameters": YARN, "max_position_embeddings": 400},
)
# Qwen3.6-27B's sizes; the layers and the vocabulary are cut
WIDE = {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262_144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    "vocab_size": 4096,
}


def layers(*kinds: str) -> dict:
    """Name the layers of a config."""
    return {"layer_types": list(kinds), "num_hidden_layers": len(kinds)}


CUTS: tuple[dict, ...] = (
    WIDE | layers(LINEAR, FULL),
    WIDE | layers(LINEAR, LINEAR, FULL, LINEAR) | {"tie_word_embeddings": True},
    WIDE | layers(FULL, LINEAR, LINEAR) | {"vocab_size": 4001},
)


@dataclass(frozen=True, eq=False)
class Setting:
    """What a law's cases are drawn from; one object a name, so identity is its key.

    name: what reports call it.
    dtype: of weights and activations.
    device: holds everything.
    variants: changes of the toy config, a target each.
    packings: group and symmetry of four-bit weights, of variant i the (i mod n)-th;
        none are packed where it is empty.
    longest: tokens of a stream, past two tiles of keys and many chunks.
    long: most rows of an `extend` where a law draws long ones beside its usual ones; 0
        where it does not.
    prompts: lengths from which the generate law draws; 1…40 where it is empty.
    pages: page sizes.
    large: weights are drawn on the device, and two targets are kept at most.
    """

    name: str
    dtype: torch.dtype
    device: str = "cpu"
    variants: tuple[dict, ...] = VARIANTS
    packings: tuple[tuple[int, bool], ...] = ()
    longest: int = 150
    long: int = 0
    prompts: tuple[int, ...] = ()
    pages: tuple[int, ...] = (1, 4, 16, 64)
    large: bool = False

    def variant(self) -> st.SearchStrategy[int]:
        """Draw a target."""
        return st.integers(0, len(self.variants) - 1)

    def page_size(self) -> st.SearchStrategy[int]:
        """Draw a page size."""
        return st.sampled_from(self.pages)

    def counts(
        self, low: int, high: int, limit: int | None = None
    ) -> st.SearchStrategy[int]:
        """Draw low…high rows, one time in four more of them where long ones are drawn.

        `limit` is the most that still fit.
        """
        usual = st.integers(low, high)
        most = self.long if limit is None else min(self.long, limit)
        if most <= high:
            return usual
        rare = st.integers(high, most)
        return st.integers(0, 3).flatmap(lambda n: rare if n == 3 else usual)


GPU_PAGES = (16, 48, 64, 128)  # the kernels refuse smaller ones
# streams of 700 cross a split of 512 keys, extends of 620 the library's 512 rows
CUT = {"device": "cuda", "pages": GPU_PAGES, "longest": 700, "long": 620}
CUT |= {"prompts": (1, 2, 15, 16, 17, 40, 620), "large": True}
TOY = {"device": "cuda", "pages": GPU_PAGES, "longest": 350, "long": 300}
TOY |= {"prompts": (1, 2, 15, 16, 17, 40, 300)}
FP32, BF16 = torch.float32, torch.bfloat16
PACKINGS = ((32, False), (128, True))
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("fp32", FP32),
        Setting("bf16", BF16),
        Setting("cuda-bf16", BF16, variants=CUTS, **CUT),
        Setting("cuda-w4a16", BF16, variants=CUTS[:2], packings=PACKINGS, **CUT),
        Setting("cuda-toy", BF16, **TOY),
        Setting("cuda-fp32", FP32, **TOY),
    )
}


def names(device: str) -> tuple[str, ...]:
    """Names of the settings on a device."""
    return tuple(s.name for s in SETTINGS.values() if s.device == device)


CPU, CUDA = names("cpu"), names("cuda")
EVERY = CPU + CUDA


def find(setting: "Setting | str") -> Setting:
    """Return a setting by its name, or as it is."""
    return SETTINGS[setting] if isinstance(setting, str) else setting


def on_cpu(dtype: torch.dtype) -> Setting:
    """Return the CPU's setting of a dtype."""
    return next(SETTINGS[n] for n in CPU if SETTINGS[n].dtype == dtype)
