"""Numbers to run kernels on."""

import torch

DTYPES = (torch.float32, torch.bfloat16)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal up to the rounding of fp32 sums, or of one bf16 number."""
    assert found.dtype == wanted.dtype
    rtol = 1e-5 if found.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-5)
