"""Device code of the bench: a plain read, whose bandwidth others are held to."""

import triton
import triton.language as tl


@triton.jit
def stream_kernel(source, out, turns, BLOCK: tl.constexpr):
    """Read blocks of words and keep next to nothing of them."""
    program = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.int32)
    at = source + program * turns * BLOCK + tl.arange(0, BLOCK)
    for turn in tl.range(0, turns, num_stages=1):
        total = total ^ tl.load(at + turn * BLOCK)
    tl.store(out + program, tl.max(total, 0))
