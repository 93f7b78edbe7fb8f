"""A device's state from NVML: utilisation, memory, clocks, power, temperature, what holds the
clocks back, which processes run on it; and from NVML's GPM, where the GPU has it (Hopper on), how
busy SMs, tensor cores and memory are.

    monitor = Monitor()  # the first GPU; Monitor(uuid="GPU-..."), Monitor(index=1)
    state = monitor.sample()  # a State; monitor.missing says why what is absent from it is

Without nvidia-ml-py, a driver or the device it raises CapabilityMissing, which says what to do.
``nvml``: the module to ask (default pynvml), so that tests can substitute one. Everything here is
measured, by the driver: utilisation is the share of the last sampling period (1/6 s to 1 s) in
which any kernel ran; GPM's figures are averages between two samples.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

from numba_marlin.bench.clocks import answers, questions, reasons
from numba_marlin.errors import CapabilityMissing

GPM = {
    "sm_busy": "NVML_GPM_METRIC_SM_UTIL",
    "occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""name in a State -> what NVML calls it; all in per cent."""


@dataclass(frozen=True)
class State:
    """``values``: those that are known of gpu, memory_bus (per cent of time), memory_used,
    memory_total (bytes), sm_mhz, sm_mhz_at_most, memory_mhz, power_w, power_limit_w, temperature_c,
    degrees_left (to where heat lowers the clocks), sm_busy, occupancy, tensor, dram (per cent).
    throttle: what holds clocks back. processes: pid -> bytes.
    """

    seconds: float
    values: dict
    throttle: tuple[str, ...]
    processes: dict = field(default_factory=dict)

    def to_dict(self) -> dict:
        return {
            "seconds": round(self.seconds, 3),
            **self.values,
            "throttle": list(self.throttle),
            "processes": {str(pid): used for pid, used in self.processes.items()},
        }


class Monitor:
    def __init__(self, index: int = 0, uuid: str | None = None, nvml=None) -> None:
        self.nvml = nvml or _pynvml()
        self.missing: dict[str, str] = {}
        try:
            self.nvml.nvmlInit()
            self.handle = (
                self.nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
                if uuid
                else self.nvml.nvmlDeviceGetHandleByIndex(index)
            )
            self.name = _text(self.nvml.nvmlDeviceGetName(self.handle))
        except self.nvml.NVMLError as error:
            raise CapabilityMissing(f"no device to look at: NVML: {error}") from error
        self.start = time.monotonic()
        self.gpm = self._gpm()

    def _gpm(self):
        try:
            return Gpm(self.nvml, self.handle)
        except (self.nvml.NVMLError, AttributeError) as error:
            reason = (
                "needs a newer nvidia-ml-py" if isinstance(error, AttributeError) else str(error)
            )
        except CapabilityMissing as error:
            reason = str(error)
        self.missing |= dict.fromkeys(GPM, reason)
        return None

    def sample(self) -> State:
        nvml, handle = self.nvml, self.handle
        asked = questions(nvml, handle) | {
            "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle),
            "memory": lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "degrees_left": lambda: degrees_left(nvml, handle),
            "running": lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle),
        }
        found = answers(nvml, asked)
        self.missing |= {name: "this GPU does not answer" for name in asked if name not in found}
        rates, memory, running = (
            found.pop(name, None) for name in ("utilisation", "memory", "running")
        )
        if rates is not None:
            found |= {"gpu": rates.gpu, "memory_bus": rates.memory}
        if memory is not None:
            found |= {"memory_used": memory.used, "memory_total": memory.total}
        if self.gpm is not None:
            found |= self.gpm.read()
        throttle = tuple(reasons(found.pop("mask", 0)))
        return State(
            time.monotonic() - self.start,
            found,
            throttle,
            {each.pid: each.usedGpuMemory or 0 for each in running or ()},
        )

    def close(self) -> None:
        with contextlib.suppress(self.nvml.NVMLError):
            self.nvml.nvmlShutdown()


class Gpm:
    """GPM's averages between one ``read`` and the previous one."""

    def __init__(self, nvml, handle) -> None:
        self.nvml, self.handle = nvml, handle
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise CapabilityMissing("this GPU has no GPM (it came with Hopper)")
        self.numbers = {name: getattr(nvml, metric) for name, metric in GPM.items()}
        self.last, self.next = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self.last)

    def read(self) -> dict[str, float]:
        """The values that NVML could compute, in per cent; {} if it could compute none."""
        nvml = self.nvml
        try:
            nvml.nvmlGpmSampleGet(self.handle, self.next)
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version, request.numMetrics = (
                nvml.NVML_GPM_METRICS_GET_VERSION,
                len(self.numbers),
            )
            request.sample1, request.sample2 = self.last, self.next
            for position, number in enumerate(self.numbers.values()):
                request.metrics[position].metricId = number
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError:
            return {}
        self.last, self.next = self.next, self.last
        return {
            name: request.metrics[position].value
            for position, name in enumerate(self.numbers)
            if request.metrics[position].nvmlReturn == 0
        }


def degrees_left(nvml, handle) -> int:
    """Until the GPU lowers its clocks: what it says itself (Hopper and later) or, from one that
    tells its threshold, the difference."""
    margin = getattr(nvml, "nvmlDeviceGetMarginTemperature", None)
    if margin is not None:
        with contextlib.suppress(nvml.NVMLError):
            return margin(handle)
    slowdown = nvml.nvmlDeviceGetTemperatureThreshold(
        handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    )
    return slowdown - nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)


def _pynvml():
    try:
        import pynvml
    except ImportError as error:
        raise CapabilityMissing(
            "NVML is asked through nvidia-ml-py, which is not installed: pip install"
            f" 'numba-marlin[device]' ({error})"
        ) from error
    return pynvml


def _text(value) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
