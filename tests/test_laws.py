"""The laws with every call type-checked; tests/compiled runs more of each."""

import pytest

from tests.laws import ALL, base
from tests.laws.settings import CPU


@pytest.mark.parametrize("setting", CPU)
@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_law_under_the_hook(law: base.Law, setting: str):
    base.run(law, setting, examples=6)
