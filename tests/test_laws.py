"""The laws with every call type-checked; tests/compiled runs more of each."""

import pytest

from tests.laws import ALL, base


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_law_under_the_hook(law: base.Law, dtype: str):
    base.run(law, dtype, examples=6)
