"""Toy configs as `TargetConfig`, read the way a checkpoint's file is."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fspec.config import TargetConfig, read_config


def parse(config_dict: Mapping[str, Any]) -> TargetConfig:
    """Read a Hugging Face config dict through fspec's own reader."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(dict(config_dict)))
        return read_config(Path(folder))
