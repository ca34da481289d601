"""Reading of a target checkpoint's safetensors files, checked before it is used."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fspec.config import TargetConfig
from fspec.errors import ConfigError, WeightError
from fspec.fields import read_fields
from fspec.integrity import (
    Entry,
    check_names,
    check_payload,
    check_shapes,
    check_storage,
    expected_shapes,
)

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_VISION = ("model.visual.", "visual.")
_TRUNK = ("model.language_model.", "model.")
_TRUNK_PARTS = ("embed_tokens.", "layers.", "norm.")
_TOP_PARTS = ("lm_head.", "mtp.")


def read_tensors(path: Path, config: TargetConfig) -> dict[str, Tensor]:
    """Return the checkpoint's tensors by canonical name, in their files' dtypes.

    Canonical names have no `model.` or `model.language_model.` in front:
    `embed_tokens.weight`, `layers.{i}.…`, `norm.weight`, `lm_head.weight` (absent
    when tied) and `mtp.…` (absent when the files have none). Vision tensors are
    skipped. Names, shapes and dtypes are checked from the headers, before any
    payload is read. On the CPU the tensors map the files: replace a file whole,
    never write into it while they are in use.

    Args:
        path: folder with `model.safetensors`, or with shards and their index. The
            index decides which of two equal names counts.
        config: the sizes, as `read_config(path)` returns them.

    Raises:
        WeightError: a file is missing or damaged; a tensor is missing, unexpected,
            mis-shaped, not finite or all zero; or a tied head differs.
        UnsupportedError: a tensor is quantised, or neither bf16, fp16 nor fp32.
    """
    if not path.is_dir():
        raise WeightError(f"{path} is not a folder; expected a checkpoint folder")
    entries = _assigned(path)
    check_storage(entries)
    found, unknown = _canonical(path, entries)
    mtp = check_names(path, found, unknown, config.mtp_layers)
    shapes = expected_shapes(config, mtp)
    stored = dict(shapes)
    if config.tied and "lm_head.weight" in found:
        stored["lm_head.weight"] = shapes["embed_tokens.weight"]
    check_shapes(path, found, stored)
    tensors = _payloads(found)
    if len(stored) > len(shapes):
        _check_tied(found["lm_head.weight"], tensors)
    return {name: tensors[name] for name in shapes}


def _assigned(path: Path) -> list[Entry]:
    """Return the header entries that count, vision left out."""
    files = sorted(path.glob("*.safetensors"))
    if (path / _INDEX).is_file():
        return _indexed(path, files)
    if [file.name for file in files] != [_SINGLE]:
        names = ", ".join(file.name for file in files) or "no .safetensors file"
        raise WeightError(
            f"{path}: found {names} and no {_INDEX}, expected {_SINGLE} alone or "
            "shards with their index (usual cause: an incomplete download)"
        )
    return list(_headers(files[0]).values())


def _indexed(path: Path, files: list[Path]) -> list[Entry]:
    assigned = _weight_map(path / _INDEX)
    for file in sorted(set(assigned.values())):
        if path / file not in files:
            raise WeightError(
                f"{path / _INDEX} names {file}, which is not in the folder (usual "
                "cause: an incomplete download); add the file"
            )
    headers = {file.name: _headers(file) for file in files}
    for name, file in assigned.items():
        if name not in headers[file]:
            raise WeightError(
                f"{path / _INDEX} puts {name} into {file}, whose header lacks it "
                "(usual cause: the index of another version); download both again"
            )
    for file, header in headers.items():
        for name in header:
            if name not in assigned:
                raise WeightError(
                    f"{path / file} holds {name}, which {_INDEX} does not list (usual "
                    "cause: a stale index or a stray file); complete the index or "
                    "remove the tensor"
                )
    return [headers[file][name] for name, file in assigned.items()]


def _weight_map(index: Path) -> Mapping[str, str]:
    """Return file by tensor name from the index, vision left out."""
    try:
        values: Any = read_fields(index).require("weight_map")
    except ConfigError as error:
        raise WeightError(str(error)) from error
    if not isinstance(values, dict):
        raise WeightError(f"{index}: weight_map is {values!r:.80}, expected an object")
    for name, file in values.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise WeightError(
                f"{index}: {name} is in {file!r}, expected a file name of this folder"
            )
    return {name: file for name, file in values.items() if not name.startswith(_VISION)}


def _headers(file: Path) -> dict[str, Entry]:
    """Return the entries of one file by name, vision left out."""
    entries: dict[str, Entry] = {}
    with _opened(file) as handle:
        for name in handle.keys():
            if not name.startswith(_VISION):
                view = handle.get_slice(name)
                shape = tuple(view.get_shape())
                entries[name] = Entry(name, file, shape, str(view.get_dtype()))
    return entries


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device="cpu") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise WeightError(
            f"{file} cannot be read as safetensors: {error} (usual cause: a truncated "
            "download, or a Git LFS pointer in place of the file); download it again"
        ) from error


def _canonical(path: Path, entries: list[Entry]) -> tuple[dict[str, Entry], list[str]]:
    """Return the entries by canonical name, and the names that have none."""
    found: dict[str, Entry] = {}
    unknown: list[str] = []
    for entry in entries:
        name = _canonical_name(entry.name)
        if name is None:
            unknown.append(entry.name)
        elif name in found:
            raise WeightError(
                f"{path}: found {found[name].name} and {entry.name}, expected one of "
                "them (usual cause: two conversions in one folder); remove one"
            )
        else:
            found[name] = entry
    return found, unknown


def _canonical_name(name: str) -> str | None:
    if name.startswith(_TOP_PARTS):
        return name
    for prefix in _TRUNK:
        rest = name.removeprefix(prefix)
        if rest != name and rest.startswith(_TRUNK_PARTS):
            return rest
    return None


def _payloads(found: Mapping[str, Entry]) -> dict[str, Tensor]:
    """Return the checked tensors; each file is opened once."""
    tensors: dict[str, Tensor] = {}
    for file in dict.fromkeys(entry.file for entry in found.values()):
        with _opened(file) as handle:
            for name, entry in found.items():
                if entry.file == file:
                    tensors[name] = handle.get_tensor(entry.name)
                    check_payload(entry, tensors[name])
    return tensors


def _check_tied(entry: Entry, tensors: Mapping[str, Tensor]) -> None:
    head, embedding = tensors["lm_head.weight"], tensors["embed_tokens.weight"]
    same = head.dtype == embedding.dtype and torch.equal(
        head.view(torch.uint8), embedding.view(torch.uint8)
    )
    if not same:
        raise WeightError(
            f"{entry.file}: {entry.name} differs from the embedding, expected equal "
            "bytes because config.json has tie_word_embeddings true (usual cause: a "
            "head trained after untying); set it to false or remove the tensor"
        )
