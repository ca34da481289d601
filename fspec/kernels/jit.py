"""Device code that several kernels share: launches that overlap (CUDA only)."""

import triton
import triton.language as tl

# by name once: older compilers look even into a branch that a constant rules out
gdc_wait = getattr(tl.extra.cuda, "gdc_wait", None)
gdc_launch_dependents = getattr(tl.extra.cuda, "gdc_launch_dependents", None)


@triton.jit
def wait_before(PDL: tl.constexpr):
    """Wait for the launch before this one, which may still be running (CUDA only)."""
    if PDL:
        gdc_wait()


@triton.jit
def release_next(PDL: tl.constexpr):
    """Let the next launch begin now: it waits before it reads what this one writes."""
    if PDL:
        gdc_launch_dependents()
