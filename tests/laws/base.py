"""How a law is stated, run, and shown to reject what is wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import fspec
from tests.laws.settings import EVERY, Setting, find

# a failure on a GPU is reported as it was drawn: device time is not spent to shrink it
UNSHRUNK = (Phase.explicit, Phase.generate)


class LawBroken(AssertionError):
    """A law does not hold for the drawn case."""


class Wrong(NamedTuple):
    """A wrong version: in `place`, `name` is replaced by `version(right)`.

    `settings` are those in which it is wrong on this project's machines.
    """

    title: str
    place: Any
    name: str
    version: Callable[[Any], Any]
    settings: tuple[str, ...] = EVERY


class Law(NamedTuple):
    """A property of drawn cases, and versions that it must reject.

    `prepare` computes what cases are compared with, so that no wrong version does.
    """

    name: str
    check: Callable[[Any, Setting], None]
    wrong: tuple[Wrong, ...]
    prepare: Callable[[Setting], None] = lambda setting: None


def require(holds: bool, what: str) -> None:
    """Raise `LawBroken` unless it holds."""
    if not holds:
        raise LawBroken(what)


def same(a: Tensor, b: Tensor, what: str) -> None:
    """Require the same bytes."""
    require(a.shape == b.shape, f"{what}: shapes {a.shape} and {b.shape}")
    if not fspec.equal(a, b):
        off = (a.double() - b.double()).abs().max()
        raise LawBroken(f"{what}: bytes differ, by up to {off:.3g}")


def run(
    law: Law, setting: Setting | str, examples: int, seed: int | None = None
) -> None:
    """Check a law on drawn cases; without a seed, always the same ones."""
    setting = find(setting)
    phases = tuple(Phase) if setting.device == "cpu" else UNSHRUNK
    _run(law, setting, examples, seed, phases)


def reject(law: Law, wrong: Wrong, setting: Setting | str, examples: int = 100) -> str:
    """Run a law on a wrong version and return how it was caught.

    Raises:
        LawBroken: it was not caught within `examples` cases.
    """
    setting = find(setting)
    with torch.no_grad():
        law.prepare(setting)
    with applied(wrong):
        try:
            _run(law, setting, examples, None, (Phase.generate,))
        except (AssertionError, fspec.FspecError) as caught:
            # broken, or refused on the way by a check of fspec's own
            return str(caught).splitlines()[0]
    raise LawBroken(f"{law.name} did not reject: {wrong.title}")


@contextmanager
def applied(wrong: Wrong) -> Iterator[None]:
    """Replace a function by its wrong version for a while."""
    right = getattr(wrong.place, wrong.name)
    with mock.patch.object(wrong.place, wrong.name, wrong.version(right)):
        yield


def _run(
    law: Law,
    setting: Setting,
    examples: int,
    seed: int | None,
    phases: tuple[Phase, ...],
) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        phases=[p for p in phases if p is not Phase.explain],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(st.data())
    def body(data: st.DataObject) -> None:
        with torch.no_grad():
            law.check(data, setting)

    if seed is not None:
        body = hypothesis.seed(seed)(body)
    body()
