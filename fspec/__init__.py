"""Speculative decoding for hybrid language models, with one arithmetic.

The five functions and `compose` are in `fspec.algorithms`, the states they carry in
`fspec.state`, the forward pass in `fspec.layers`. This module names what users call.
"""

import fspec.state.canonical  # noqa: F401, registers `canonical`
from fspec.algorithms.accept import accept, commit_sampling, greedy
from fspec.algorithms.base import drafter
from fspec.algorithms.commit import commit
from fspec.algorithms.lookup import lookup
from fspec.algorithms.mtp import mtp
from fspec.algorithms.none import none
from fspec.algorithms.step import DecodeState, Step, compose
from fspec.algorithms.verify import extend, form_block, verify
from fspec.config import TargetConfig, read_config
from fspec.errors import (
    CapacityError,
    ConfigError,
    FspecError,
    RequestError,
    ShapeError,
    StateError,
    UnsupportedError,
    WeightError,
)
from fspec.generation import Generation, generate
from fspec.layers.decoder import TargetParams, head
from fspec.load import build_target, embedded_path, load_target, pack_target
from fspec.start import init_decode, init_target
from fspec.state.pool import (
    PagePool,
    branch,
    page_pool,
    release,
    reserve,
    reserve_,
)
from fspec.state.protocol import canonical, cut, fork, reset
from fspec.state.target import TargetState
from fspec.state.tree import Owned, equal, own
from fspec.text import Tokenizer, load_tokenizer
from fspec.types import (
    Acceptance,
    Block,
    Committed,
    Drafter,
    Info,
    Proposal,
    Room,
    SamplingState,
    Verdict,
)

__version__ = "0.1.0"

__all__ = [
    "Acceptance",
    "Block",
    "CapacityError",
    "Committed",
    "ConfigError",
    "DecodeState",
    "Drafter",
    "FspecError",
    "Generation",
    "Info",
    "Owned",
    "PagePool",
    "Proposal",
    "RequestError",
    "Room",
    "SamplingState",
    "ShapeError",
    "StateError",
    "Step",
    "TargetConfig",
    "TargetParams",
    "TargetState",
    "Tokenizer",
    "UnsupportedError",
    "Verdict",
    "WeightError",
    "accept",
    "branch",
    "build_target",
    "canonical",
    "commit",
    "commit_sampling",
    "compose",
    "cut",
    "drafter",
    "embedded_path",
    "equal",
    "extend",
    "fork",
    "form_block",
    "generate",
    "greedy",
    "head",
    "init_decode",
    "init_target",
    "load_target",
    "load_tokenizer",
    "lookup",
    "mtp",
    "none",
    "own",
    "pack_target",
    "page_pool",
    "read_config",
    "release",
    "reserve",
    "reserve_",
    "reset",
    "verify",
]
