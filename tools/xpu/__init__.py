"""Check Triton kernels for Intel's Xe2 GPUs (Arc Pro B70) without having one.

A kernel is checked twice, both times through the project's own launchers:

    native  compiled to machine code of the GPU; registers, spills, matrix units counted
    run     compiled without the GPU's own instructions and executed on the CPU by
            Intel's OpenCL runtime; compared with the reference, and rows with rows

`driver.py` stands in for the GPU's driver, so a launch like `kernel[grid](x, y)` on
CPU tensors ends in one of the two. What is launched is said in `tests/xpu`.
"""
