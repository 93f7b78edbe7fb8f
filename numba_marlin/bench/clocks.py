"""NVML readings during a measurement: SM and memory clock, power, temperature, and the reasons for
throttling. Uses nvidia-ml-py if it is installed.

NVML averages over some tenths of a second, so the readings of a short measurement include what ran
before it: "power cap" with an SM clock near its maximum means little; with a low clock it explains
the time.

    watch = ClockWatch(uuid)
    ... watch.sample() while the GPU is busy ...
    watch.summary()     # a dict for a row; None without NVML (watch.missing: why)
"""

from __future__ import annotations

import time

# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean the GPU would run faster if it could.
# (nvml.h; idle and application clocks are none of them.)
HELD_BACK = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


def reasons(mask: int) -> list[str]:
    return [name for bit, name in HELD_BACK.items() if mask & bit]


def questions(nvml, handle) -> dict:
    """name -> function that queries the ``pynvml`` module about the device."""
    event_reasons = (
        getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )
    return {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "sm_mhz_at_most": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "mask": lambda: event_reasons(handle),
    }


def answers(nvml, asked: dict) -> dict:
    """name -> answer, without those that this GPU does not support."""
    found = {}
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except nvml.NVMLError:
            continue
    return found


class ClockWatch:
    """Samples of one GPU, chosen by its UUID ("GPU-..."), or the first."""

    def __init__(self, uuid: str | None = None):
        self.missing = ""
        self._nvml = self._handle = None
        self._samples: list[dict] = []
        try:
            import pynvml
        except ImportError:
            self.missing = "clocks are not recorded: nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            self._handle = (
                pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
                if uuid
                else pynvml.nvmlDeviceGetHandleByIndex(0)
            )
        except pynvml.NVMLError as error:
            self.missing = f"clocks are not recorded: NVML: {error}"
            return
        self._nvml = pynvml

    def settle(self, seconds: float = 3.0) -> None:
        """Wait until the clocks are no longer throttled, at most ``seconds``; returns at once
        without NVML."""
        end = time.monotonic() + seconds
        while (
            self._nvml is not None
            and time.monotonic() < end
            and reasons(self._ask().get("mask", 0))
        ):
            time.sleep(0.05)

    def sample(self) -> None:
        if self._nvml is not None:
            self._samples.append(self._ask())

    def _ask(self) -> dict:
        return answers(self._nvml, questions(self._nvml, self._handle))

    def clear(self) -> None:
        self._samples.clear()

    def summary(self) -> dict | None:
        return summary(self._samples)


def summary(samples: list[dict]) -> dict | None:
    """{"sm_mhz": [least, most], "memory_mhz", "power_w", "temperature_c": alike, "sm_mhz_at_most":
    the GPU's limit, "throttle": [reason, ...], "samples": count}; what no sample has is left out;
    None if all samples are empty."""
    if not any(samples):
        return None
    result: dict = {}
    for name in ("sm_mhz", "memory_mhz", "power_w", "temperature_c"):
        values = [round(each[name]) for each in samples if name in each]
        if values:
            result[name] = [min(values), max(values)]
    limits = [each["sm_mhz_at_most"] for each in samples if "sm_mhz_at_most" in each]
    if limits:
        result["sm_mhz_at_most"] = max(limits)
    mask = 0
    for each in samples:
        mask |= each.get("mask", 0)
    return result | {"throttle": reasons(mask), "samples": len(samples)}
