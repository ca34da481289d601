"""A stand-in for the GPU's driver, so that launchers run as they are on CPU tensors."""

# pyopencl is in the other venv, and so is the Triton whose driver this is
# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false

from types import SimpleNamespace
from typing import Any, NamedTuple

import pyopencl as cl
import torch
import triton
from triton.backends.driver import DriverBase

from tools.xpu import native
from tools.xpu.opencl import Runtime
from tools.xpu.target import PLAIN, SLM_BYTES, XE2, patch_backend


class Compiled(NamedTuple):
    """One kernel in one configuration, as compiled for the GPU."""

    kernel: str
    config: str
    warps: int
    grf: int
    spill: int
    simd: int
    dpas: bool
    slm: int


def describe(source: Any, metadata: Any) -> str:
    """Say what distinguishes a compiled kernel: its types and constants."""
    names = source.fn.arg_names
    types = sorted({t[1:] for t in source.signature.values() if t.startswith("*")})
    constants = [
        f"{names[place[0]]}={value}"
        for place, value in source.constants.items()
        if names[place[0]].isupper() or value is None
    ]
    stages = metadata.num_stages
    return " ".join(["/".join(types), *constants, f"stages={stages}"])


class _Launcher:
    """What Triton calls to launch a compiled kernel."""

    def __init__(self, driver: "Driver", source: Any, metadata: Any) -> None:
        self._driver, self._source, self._metadata = driver, source, metadata
        self._built: cl.Kernel | None = None
        self._native: Compiled | None = None

    def __call__(
        self, x: int, y: int, z: int, _: Any, spirv: bytes, *rest: Any
    ) -> None:
        if self._driver.runtime:
            self._run(self._driver.runtime, (x, y, z), spirv, rest[4:])
        else:
            self._record(spirv)

    def _record(self, spirv: bytes) -> None:
        about = self._metadata
        if self._native is None:
            code = native.compile_native(spirv, about.num_warps, about.build_flags)
            config = describe(self._source, about)
            self._native = Compiled(
                about.name, config, about.num_warps, *code, about.shared
            )
        if self._native not in self._driver.compiled:
            self._driver.compiled.append(self._native)

    def _run(
        self, runtime: Runtime, groups: tuple[int, int, int], spirv: bytes, values: Any
    ) -> None:
        about = self._metadata
        if self._built is None:
            self._built = runtime.build(spirv, about.name)
        kinds = self._source.signature.values()
        arguments = [
            (kind, value)
            for kind, value in zip(kinds, values, strict=True)
            if kind != "constexpr"
        ]
        lanes = about.num_warps * about.threads_per_warp
        runtime.launch(self._built, arguments, groups, lanes, about.shared)


class Driver(DriverBase):
    """Compiles launches for the GPU, or executes them if it has a runtime."""

    def __init__(self, runtime: Runtime | None) -> None:
        """Take the place of Triton's driver once `activate` is called."""
        super().__init__()
        self.runtime = runtime
        self.compiled: list[Compiled] = []
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": SLM_BYTES},
            load_binary=lambda name, spirv, *rest: (spirv, spirv, 0, 0),
        )

    @classmethod
    def is_active(cls) -> bool:
        """Triton need not look for a device."""
        return True

    def get_current_target(self) -> Any:
        """Name the device that kernels are compiled for."""
        return PLAIN if self.runtime else XE2

    def get_current_device(self) -> int:
        """Number the only device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Number the only stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Say where tensors are."""
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        """Refuse: nothing here says how fast a GPU is.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a configuration must not be chosen by a benchmark")

    def launcher_cls(self, source: Any, metadata: Any) -> _Launcher:
        """Make what Triton calls to launch a kernel."""
        return _Launcher(self, source, metadata)

    def activate(self) -> "Driver":
        """Make every launch from here on go through this driver."""
        patch_backend()
        triton.runtime.driver.set_active(self)
        return self
