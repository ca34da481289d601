"""The laws, on random small targets, and what each must reject."""

import pytest

from tests.laws import base, branch, commit, generate, purity, row

EXAMPLES = 60
LAWS = [module.LAW for module in (row, commit, purity, branch, generate)]
WRONG = [
    pytest.param(law, wrong, dtype, id=f"{law.name}-{wrong.title}-{dtype}")
    for law in LAWS
    for wrong in law.wrong
    for dtype in wrong.dtypes
]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_law(law: base.Law, dtype: str):
    base.run(law, dtype, EXAMPLES)


@pytest.mark.parametrize(("law", "wrong", "dtype"), WRONG)
def test_law_rejects(law: base.Law, wrong: base.Wrong, dtype: str):
    assert base.reject(law, wrong, dtype)
