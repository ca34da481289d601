"""Memory that a kernel allocates is NaN until it writes there."""

import pytest
import torch


@pytest.fixture(autouse=True)
def nan_filled_empty(monkeypatch: pytest.MonkeyPatch):
    def poisoned(make):
        def filled(*size, **options):
            made = make(*size, **options)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        return filled

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    new_empty = poisoned(torch.Tensor.new_empty)
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
