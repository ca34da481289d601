"""SPIR-V to machine code by `ocloc`, and what the machine code says of itself."""

import os
import re
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.xpu.target import DEVICE

SMALL, LARGE = "-cl-intel-128-GRF-per-thread", "-cl-intel-256-GRF-per-thread"
MAX_LARGE_WARPS = 32


class Code(NamedTuple):
    """Facts of one compiled kernel: registers a thread, bytes spilled, lanes."""

    grf: int
    spill: int
    simd: int
    dpas: bool


def compile_native(spirv: bytes, num_warps: int, flags: str = "") -> Code:
    """Compile SPIR-V for the GPU as Intel's driver does.

    128 registers a thread first, and 256 when something spills: the driver's
    `grf_mode` 'default'. `flags` names one mode only.

    Raises:
        RuntimeError: the code does not compile; with the compiler's words.
    """
    if flags:
        return _ocloc(spirv, flags)
    code = _ocloc(spirv, SMALL)
    if code.spill and num_warps <= MAX_LARGE_WARPS:
        return _ocloc(spirv, LARGE)
    return code


def _ocloc(spirv: bytes, flags: str) -> Code:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.spv")
        source.write_bytes(spirv)
        command = [os.environ["OCLOC"], "compile", "-file", str(source)]
        command += ["-spirv_input", "-device", DEVICE, "-options", flags]
        command += ["-output", str(Path(folder, "kernel"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made = list(Path(folder).glob("*.bin"))
        if done.returncode or not made:
            words = " ".join((done.stdout + done.stderr).split())
            raise RuntimeError(f"ocloc refuses it: {words[-400:]}")
        return _read_code(made[0].read_bytes())


def _read_code(elf: bytes) -> Code:
    text = _sections(elf)[".ze_info"].decode()

    def find(key: str, default: str) -> str:
        found = re.search(rf"^\s+{key}:\s+(\S+)", text, re.MULTILINE)
        return found[1] if found else default

    return Code(
        int(find("grf_count", "0")),
        int(find("spill_size", "0")),
        int(find("simd_size", "0")),
        find("has_dpas", "false") == "true",
    )


def _sections(elf: bytes) -> dict[str, bytes]:
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [
        struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)
    ]
    bodies = [elf[at : at + length] for *_, at, length in headers]
    names = bodies[names_at]
    titles = [names[h[0] : names.index(b"\0", h[0])].decode() for h in headers]
    return dict(zip(titles, bodies, strict=True))
