"""The laws, on random small targets, and what each must reject."""

import pytest

from tests.laws import ALL, base

EXAMPLES = 60
WRONG = [
    pytest.param(law, wrong, dtype, id=f"{law.name}-{wrong.title}-{dtype}")
    for law in ALL
    for wrong in law.wrong
    for dtype in wrong.dtypes
]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_law(law: base.Law, dtype: str):
    base.run(law, dtype, EXAMPLES)


@pytest.mark.parametrize(("law", "wrong", "dtype"), WRONG)
def test_law_rejects(law: base.Law, wrong: base.Wrong, dtype: str):
    assert base.reject(law, wrong, dtype)
