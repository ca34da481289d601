"""Which devices fspec runs on, and what is done differently on each.

Traps of XPU that this file keeps for all callers:
- wait for a stream, never for the device: a device-wide wait after a replayed graph has
  crashed on Battlemage (pytorch #187277);
- capture on one stream: a SYCL graph does not pull in work of another, and fails when
  it depends on some (vllm #53993);
- nothing inside a capture may wait, allocate outside the graph's pool, or copy from
  memory that is not pinned.
"""

from collections.abc import Callable
from typing import Any

import torch

from fspec.errors import UnsupportedError

DEVICES = ("cpu", "cuda", "xpu")


def find_device(name: torch.device | str) -> torch.device:
    """Return the device of that name, such as `cpu`, `cuda`, `cuda:1` or `xpu`.

    Raises:
        UnsupportedError: fspec does not run on it, or torch does not see it here.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICES:
        raise UnsupportedError(
            f"device {name} was given; fspec runs on {', '.join(DEVICES)}"
        )
    count = 1 if device.type == "cpu" else _count(device.type)
    if (device.index or 0) >= count:
        raise UnsupportedError(
            f"device {name} was given; torch {torch.__version__} sees {count} "
            f"{device.type} devices here. Use another, or a torch built for it"
        )
    if device.type != "cpu" and device.index is not None:
        current = _module(device).current_device()
        if device.index != current:
            raise UnsupportedError(
                f"device {name} was given; kernels are launched on the current device, "
                f"{device.type}:{current}. Call torch.{device.type}.set_device("
                f"{device.index}) first, or leave the index out"
            )
    return device


def describe(device: torch.device) -> str:
    """Name a device for a report, an accelerator with its model."""
    if device.type == "cpu":
        return "cpu"
    return f"{device.type} ({getattr(torch, device.type).get_device_name(device)})"


def synchronize(device: torch.device) -> None:
    """Wait until the current stream of a device has done its work."""
    if device.type != "cpu":
        _module(device).current_stream(device).synchronize()


def record(work: Callable[[], None], device: torch.device) -> Callable[[], float]:
    """Capture work in a graph.

    Args:
        work: launches on `device` alone; called twice before it is captured, so that
            kernels are compiled and memory is laid out.
        device: an accelerator.

    Returns:
        A function that replays the graph once and returns the seconds it took there.
    """
    module = _module(device)
    graph = getattr(module, "CUDAGraph" if device.type == "cuda" else "XPUGraph")()
    stream = module.Stream(device)
    stream.wait_stream(module.current_stream(device))
    with module.stream(stream):
        work()
        work()
        stream.synchronize()
        with module.graph(graph, stream=stream):
            work()
    stream.synchronize()

    def replay() -> float:
        begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    replay()
    return replay


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device.type)


def _count(kind: str) -> int:
    module = getattr(torch, kind)
    return module.device_count() if module.is_available() else 0
