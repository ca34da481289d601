"""Checkpoint files to tensors: every layout, every absence, every refusal."""

import json
import resource
import shutil
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from fspec.checkpoint import read_tensors
from fspec.config import read_config
from fspec.errors import FspecError, UnsupportedError, WeightError
from fspec.integrity import expected_shapes
from tests.toy import toy_config_dict, toy_state_dict, write_checkpoint

TINY = Path(__file__).parents[1] / "fspec" / "models" / "tiny" / "target"
CONFIG = toy_config_dict()
TOY = toy_state_dict(CONFIG, seed=0)
NAMES = sorted(TOY)
# One of each kind of tensor: all of one GDN layer, one full layer, and what is single.
KINDS = [
    name for name in NAMES if not name.startswith(("model.layers.0", "model.layers.3"))
]
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def canonical(name: str) -> str:
    return name.removeprefix("model.").removeprefix("language_model.")


def read(path: Path) -> dict[str, Tensor]:
    return read_tensors(path, read_config(path))


def same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return got.keys() == expected.keys() and all(
        got[name].dtype == expected[name].dtype
        and torch.equal(got[name], expected[name])
        for name in got
    )


def trunk(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if not k.startswith("mtp.")}


def plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {canonical(name): tensor for name, tensor in tensors.items()}


def with_tensor(name: str, tensor: Tensor) -> dict[str, Tensor]:
    return TOY | {name: tensor}


def edit_index(path: Path, **changes: str | None) -> None:
    """Set or (with None) remove entries; a dot is written as two underscores."""
    index = json.loads((path / INDEX).read_text())
    for key, file in changes.items():
        name = key.replace("__", ".")
        if file is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = file
    (path / INDEX).write_text(json.dumps(index))


def test_the_toy_loads_into_transformers():
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**CONFIG))
    model.load_state_dict(trunk(TOY), strict=True)


def test_the_toy_is_a_function_of_its_seed():
    assert same(trunk(TOY), toy_state_dict(CONFIG, seed=0, mtp=False))
    assert not torch.equal(
        TOY["model.norm.weight"], toy_state_dict(CONFIG, 1)["model.norm.weight"]
    )
    steps = torch.nn.functional.softplus(TOY["model.layers.0.linear_attn.dt_bias"])
    assert bool(((steps > 0.0009) & (steps < 0.11)).all())


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("vision", [None, "model.visual.", "visual."])
def test_layouts_give_equal_tensors(tmp_path, wrapped, prefix, shards, vision):
    config = CONFIG
    if wrapped:
        config = {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": {k: v for k, v in CONFIG.items() if k != "architectures"},
        }
    tensors = {
        prefix + canonical(name) if name.startswith("model.") else name: tensor
        for name, tensor in TOY.items()
    }
    if vision:
        tensors[vision + "blocks.0.attn.qkv.bias"] = torch.zeros(3)
        tensors[vision + "patch.weight_packed"] = torch.zeros(3, dtype=torch.int32)
    got = read(write_checkpoint(tmp_path / "toy", config, tensors, shards))
    assert same(got, plain(TOY))


def test_names_and_order_are_those_of_the_config(tmp_path):
    path = write_checkpoint(tmp_path, CONFIG, TOY)
    shapes = expected_shapes(read_config(path), mtp=True)
    got = read(path)
    assert list(got) == list(shapes)
    assert {name: tuple(tensor.shape) for name, tensor in got.items()} == shapes


def test_tiny_checkpoint():
    tensors = read(TINY)
    stored: dict[str, Tensor] = {}
    for file in TINY.glob("*.safetensors"):
        stored |= load_file(file)
    assert same(tensors, plain(stored))
    assert sum(t.numel() for t in tensors.values()) == 16796352


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_are_those_of_the_file(tmp_path, dtype):
    keep = ("A_log", "linear_attn.norm.weight")
    tensors = {k: v if k.endswith(keep) else v.to(dtype) for k, v in TOY.items()}
    assert same(read(write_checkpoint(tmp_path, CONFIG, tensors)), plain(tensors))


def test_trunk_is_the_same_with_and_without_mtp(tmp_path):
    full = read(write_checkpoint(tmp_path / "mtp", CONFIG, TOY))
    for count in (0, 1, None):
        config = CONFIG | {"mtp_num_hidden_layers": count}
        bare = read(write_checkpoint(tmp_path / f"{count}", config, trunk(TOY)))
        assert same(bare, trunk(full))


@pytest.mark.parametrize("name", KINDS)
def test_each_missing_tensor_is_named(tmp_path, name):
    tensors = {other: tensor for other, tensor in TOY.items() if other != name}
    with pytest.raises(WeightError, match=f"missing {canonical(name)}, .*usual cause"):
        read(write_checkpoint(tmp_path, CONFIG, tensors))


@pytest.mark.parametrize("name", KINDS)
def test_each_misshaped_tensor_is_named(tmp_path, name):
    tensors = with_tensor(name, TOY[name][:-1].clone())
    with pytest.raises(WeightError, match=rf"{name} has shape \[.*expected \["):
        read(write_checkpoint(tmp_path, CONFIG, tensors))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", KINDS)
def test_each_tensor_is_finite(tmp_path, name, value):
    bad = TOY[name].clone()
    bad.view(-1)[-1] = value
    with pytest.raises(WeightError, match=f"{name} holds NaN or infinity"):
        read(write_checkpoint(tmp_path, CONFIG, with_tensor(name, bad)))


@pytest.mark.parametrize("name", KINDS)
def test_all_zero_is_refused_where_it_means_nothing(tmp_path, name):
    tensors = with_tensor(name, torch.zeros_like(TOY[name]))
    path = write_checkpoint(tmp_path, CONFIG, tensors)
    legal = TOY[name].ndim == 1 and not name.endswith("linear_attn.norm.weight")
    if legal:
        assert same(read(path), plain(tensors))
    else:
        with pytest.raises(WeightError, match=f"{name} is all zero"):
            read(path)


def test_zeros_are_legal_in_exactly_these_kinds():
    legal = {
        canonical(name).split(".", 2)[-1]
        for name in NAMES
        if TOY[name].ndim == 1 and not name.endswith("linear_attn.norm.weight")
    }
    assert legal == {
        "weight",  # norm.weight
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "linear_attn.A_log",
        "linear_attn.dt_bias",
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
    } | {
        f"0.{name}"
        for name in (
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "self_attn.q_norm.weight",
            "self_attn.k_norm.weight",
        )
    }


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.4.input_layernorm.weight",
        "model.layers.2.linear_attn.A_log",
        "model.layers.2.self_attn.q_proj.bias",
        "model.rotary_emb.inv_freq",
        "model.language_model.lm_head.weight",
        "model.mtp.fc.weight",
        "layers.0.input_layernorm.weight",
        "embed_tokens.weight",
        "mtp.layers.1.input_layernorm.weight",
        "lm_head.bias",
        "foo",
    ],
)
def test_unexpected_tensors_are_named(tmp_path, name):
    with pytest.raises(WeightError, match=f"found {name}, expected"):
        read(write_checkpoint(tmp_path, CONFIG, with_tensor(name, torch.ones(64))))


def test_a_renamed_tensor_gives_both_names(tmp_path):
    tensors = dict(TOY)
    tensors["model.layers.0.mlp.up.weight"] = tensors.pop(
        "model.layers.0.mlp.up_proj.weight"
    )
    match = "missing layers.0.mlp.up_proj.weight.*model.layers.0.mlp.up.weight"
    with pytest.raises(WeightError, match=match):
        read(write_checkpoint(tmp_path, CONFIG, tensors))


def test_two_spellings_of_one_name(tmp_path):
    tensors = with_tensor("model.language_model.norm.weight", torch.ones(64))
    with pytest.raises(WeightError, match=r"found .*norm\.weight and .*norm\.weight"):
        read(write_checkpoint(tmp_path, CONFIG, tensors))


def test_mtp_that_the_config_does_not_announce(tmp_path):
    config = CONFIG | {"mtp_num_hidden_layers": 0}
    with pytest.raises(WeightError, match=r"mtp\.fc\.weight.*mtp_num_hidden_layers"):
        read(write_checkpoint(tmp_path, config, TOY))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.up_proj.weight_packed",
        "model.layers.0.mlp.up_proj.weight_scale",
        "model.layers.0.mlp.up_proj.weight_scale_inv",
        "model.layers.0.mlp.up_proj.weight_zero_point",
        "model.layers.0.mlp.up_proj.weight_shape",
        "model.layers.0.mlp.up_proj.weight_g_idx",
        "model.layers.0.mlp.up_proj.qweight",
        "model.layers.0.mlp.up_proj.qzeros",
        "model.layers.0.mlp.up_proj.scales",
        "model.layers.0.mlp.up_proj.g_idx",
        "lm_head.weight_packed",
        "model.embed_tokens.weight_scale",
        "mtp.fc.weight_scale",
    ],
)
def test_quantised_names_are_refused(tmp_path, name):
    tensors = with_tensor(name, torch.ones(8))
    with pytest.raises(UnsupportedError, match=f"{name} .*quantised"):
        read(write_checkpoint(tmp_path, CONFIG, tensors))


@pytest.mark.parametrize(
    "dtype",
    [torch.int32, torch.int8, torch.float8_e4m3fn, torch.float64, torch.bool],
)
def test_other_dtypes_are_refused(tmp_path, dtype):
    name = "model.layers.2.self_attn.q_proj.weight"
    with pytest.raises(UnsupportedError, match=f"{name} .*expected BF16, F16 or F32"):
        read(write_checkpoint(tmp_path, CONFIG, with_tensor(name, TOY[name].to(dtype))))


def test_tied_and_untied_heads(tmp_path):
    tied = CONFIG | {"tie_word_embeddings": True}
    bare = toy_state_dict(tied, seed=0)
    embedding = bare["model.embed_tokens.weight"]
    assert "lm_head.weight" not in bare
    got = read(write_checkpoint(tmp_path / "bare", tied, bare))
    assert same(got, plain(bare))
    both = bare | {"lm_head.weight": embedding.clone()}
    assert same(read(write_checkpoint(tmp_path / "both", tied, both)), plain(bare))
    for number, head in enumerate((embedding + 1, embedding.bfloat16(), embedding[1:])):
        wrong = bare | {"lm_head.weight": head.clone()}
        with pytest.raises(WeightError, match=r"lm_head\.weight"):
            read(write_checkpoint(tmp_path / f"{number}", tied, wrong))
    with pytest.raises(
        WeightError, match=r"missing lm_head\.weight.*tie_word_embedding"
    ):
        read(write_checkpoint(tmp_path / "untied", CONFIG, bare))


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("shape", [(64,), (3, 3)])
def test_the_index_decides_between_copies(tmp_path, order, shape):
    path = write_checkpoint(tmp_path, CONFIG, TOY, shards=2)
    right, stale = SHARDS if order else SHARDS[::-1]
    name = next(n for n in load_file(path / right) if n.endswith("layernorm.weight"))
    copies = load_file(path / stale) | {name: torch.zeros(shape)}
    save_file(copies, path / stale)
    assert same(read(path), plain(TOY))


def test_stray_files_hold_stale_copies_only(tmp_path):
    path = write_checkpoint(tmp_path, CONFIG, TOY, shards=2)
    save_file({"model.norm.weight": torch.zeros(64)}, path / "old.safetensors")
    assert same(read(path), plain(TOY))
    save_file({"mtp.extra": torch.ones(4)}, path / "old.safetensors")
    with pytest.raises(WeightError, match=r"old\.safetensors holds mtp\.extra"):
        read(path)


def test_index_and_files_must_agree(tmp_path):
    base = write_checkpoint(tmp_path / "base", CONFIG, TOY, shards=2)

    def fresh(name: str) -> Path:
        return Path(shutil.copytree(base, tmp_path / name))

    path = fresh("absent")
    (path / SHARDS[1]).unlink()
    with pytest.raises(WeightError, match=f"names {SHARDS[1]}, which is not in"):
        read(path)
    path = fresh("wrong")
    edit_index(path, model__norm__weight=SHARDS[0])
    with pytest.raises(WeightError, match=f"model.norm.weight into {SHARDS[0]}"):
        read(path)
    path = fresh("unlisted")
    edit_index(path, model__norm__weight=None)
    with pytest.raises(
        WeightError, match=r"holds model\.norm\.weight, which.*not list"
    ):
        read(path)
    path = fresh("outside")
    edit_index(path, model__norm__weight="../base/" + SHARDS[1])
    with pytest.raises(WeightError, match="expected a file name of this folder"):
        read(path)
    path = fresh("none")
    (path / INDEX).unlink()
    with pytest.raises(WeightError, match=f"found {SHARDS[0]}, {SHARDS[1]} and no"):
        read(path)
    path = fresh("vision")
    edit_index(path, model__visual__w="model-vision.safetensors")
    assert same(read(path), plain(TOY))
    for text in ("{", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}'):
        (base / INDEX).write_text(text)
        with pytest.raises(WeightError, match="index"):
            read(base)


def test_folders_without_weights(tmp_path):
    path = write_checkpoint(tmp_path / "toy", CONFIG, TOY)
    config = read_config(path)
    with pytest.raises(WeightError, match="nowhere is not a folder"):
        read_tensors(tmp_path / "nowhere", config)
    (path / "model.safetensors").rename(path / "weights.safetensors")
    with pytest.raises(WeightError, match=r"weights\.safetensors and no"):
        read(path)
    (path / "weights.safetensors").unlink()
    with pytest.raises(WeightError, match=r"no \.safetensors file"):
        read(path)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_truncated_files_are_named(tmp_path, kept):
    file = write_checkpoint(tmp_path, CONFIG, TOY) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(WeightError, match=r"model\.safetensors cannot be read"):
        read(tmp_path)


def test_a_file_that_is_no_file(tmp_path):
    file = write_checkpoint(tmp_path, CONFIG, TOY) / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(WeightError, match="Git LFS"):
        read(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(WeightError, match=r"model\.safetensors cannot be read"):
        read(tmp_path)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_headers_raise_only_fspec_errors(tmp_path, data):
    file = write_checkpoint(tmp_path, CONFIG, TOY) / "model.safetensors"
    content = bytearray(file.read_bytes())
    size = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        got = read(tmp_path)
    except FspecError:
        return
    assert got.keys() == plain(TOY).keys()


def test_headers_are_checked_before_payloads(tmp_path):
    """A wrong shape is reported although the payload, read first, would fail."""
    name = "model.norm.weight"
    tensors = with_tensor("model.embed_tokens.weight", torch.full((128, 64), torch.nan))
    tensors[name] = torch.ones(3)
    with pytest.raises(WeightError, match=f"{name} has shape"):
        read(write_checkpoint(tmp_path, CONFIG, tensors))


@pytest.mark.skipif(sys.platform != "linux", reason="sparse files, ru_maxrss in KiB")
def test_a_refused_checkpoint_is_not_read(tmp_path):
    path = write_checkpoint(tmp_path, CONFIG, TOY)
    header = json.dumps(
        {"extra": {"dtype": "F32", "shape": [1 << 30], "data_offsets": [0, 1 << 32]}}
    ).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WeightError, match="found extra"):
        read(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1 << 20  # KiB; the file is 4 GiB


def test_reading_writes_nothing_and_repeats(tmp_path):
    path = write_checkpoint(tmp_path, CONFIG, TOY, shards=2)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert same(read(path), read(path))
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
