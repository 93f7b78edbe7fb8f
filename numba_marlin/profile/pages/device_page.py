"""The page of a device's state (``device_state``): bars of the last sample, curves of the last
samples, and the processes that run on the device."""

from __future__ import annotations

from numba_marlin.hardware.devices import specified
from numba_marlin.profile.sources.device_state import GPM, State
from numba_marlin.views import MEASURED, Bar, Bars, Facts, Lines, Page, Section, Series, Table

TITLES = {
    "gpu": "a kernel ran",
    "memory_bus": "memory was accessed",
    "sm_busy": "SMs busy",
    "occupancy": "occupancy",
    "tensor": "tensor cores",
    "dram": "DRAM bandwidth",
}
CURVES = ("gpu", "tensor", "dram", "power")


def page(
    name: str,
    states: list[State],
    missing: dict[str, str],
    kernels: list[tuple[str, ...]] = (),
    note: str = "",
) -> Page:
    """Build the page.

    states: samples, the oldest first. missing: {name of a value: why it is not known}. kernels:
    (name, grid or details, number of launches or "") of the kernels that the watched process runs.
    """
    return Page(f"{name}, live", (section(name, states, missing, kernels),), note)


def section(name: str, states: list[State], missing: dict[str, str], kernels=()) -> Section:
    if not states:
        return Section("device", "Device", ("No sample was taken.",))
    last, known = states[-1], specified(name)
    peak = known.bandwidth_bytes if known else None
    parts: list = [
        Bars(tuple(bars(last, peak)), title="Now", source=MEASURED),
        Facts(tuple(facts(last, missing)), title="State"),
    ]
    if len(states) > 2:
        found = tuple(
            each for each in map(lambda name: curve(states, name), CURVES) if each is not None
        )
        if found:
            parts.append(
                Lines(
                    found,
                    title="The last samples",
                    x_label="s",
                    y_label="%",
                    y_max=100.0,
                    source=MEASURED,
                )
            )
    if kernels:
        parts.append(
            Table(
                ("kernel", "how", "launches"),
                tuple(kernels),
                title="Kernels of the watched process",
            )
        )
    if last.processes:
        rows = tuple((str(pid), f"{used / 2**20:,.0f} MiB") for pid, used in last.processes.items())
        parts.append(
            Table(("process", "memory"), rows, title="Processes on the device", source=MEASURED)
        )
    return Section("device", "Device", (), tuple(parts))


def bars(state: State, peak: float | None):
    """peak: bytes a second of the device's memory, by its data sheet."""
    values = state.values
    for name, title in TITLES.items():
        if name in values:
            rate = (
                f": {values[name] / 100 * peak / 1e9:,.0f} of {peak / 1e9:,.0f} GB/s (spec)"
                if name == "dram" and peak
                else ""
            )
            yield Bar(title, values[name], f"{values[name]:.0f}%{rate}", "", 100.0)
    if "memory_used" in values:
        yield Bar(
            "memory in use",
            values["memory_used"],
            f"{values['memory_used'] / 2**30:.1f} of {values['memory_total'] / 2**30:.1f} GiB",
            "",
            values["memory_total"],
        )
    if "power_w" in values:
        limit = values.get("power_limit_w")
        yield Bar(
            "power",
            values["power_w"],
            f"{values['power_w']:.0f}" + (f" of {limit:.0f} W" if limit else " W"),
            "",
            limit,
        )
    if "sm_mhz" in values:
        most = values.get("sm_mhz_at_most")
        yield Bar(
            "SM clock",
            values["sm_mhz"],
            f"{values['sm_mhz']}" + (f" of {most} MHz" if most else " MHz"),
            "",
            most,
        )


def _safe(values: dict) -> str:
    left = values.get("degrees_left")
    if left is None:
        return ""
    return f", {left} below where clocks are lowered: safe" if left > 0 else ": clocks are lowered"


def facts(state: State, missing: dict[str, str]):
    values = state.values
    if "temperature_c" in values:
        yield "temperature", f"{values['temperature_c']} C{_safe(values)}", MEASURED
    if "memory_mhz" in values:
        yield "memory clock", f"{values['memory_mhz']} MHz", MEASURED
    yield "clocks limited by", ", ".join(state.throttle) or "nothing", MEASURED
    lacking: dict[str, list[str]] = {}
    for name, reason in missing.items():
        lacking.setdefault(reason, []).append(
            TITLES.get(name, name) if name in GPM else name.replace("_", " ")
        )
    for reason, names in lacking.items():
        yield "not known", f"{', '.join(names)}: {reason}"


def curve(states: list[State], name: str) -> Series | None:
    def value(state: State):
        if name == "power":
            limit = state.values.get("power_limit_w")
            return (
                100 * state.values["power_w"] / limit
                if limit and "power_w" in state.values
                else None
            )
        return state.values.get(name)

    points = tuple(
        (state.seconds, float(value(state))) for state in states if value(state) is not None
    )
    return (
        Series({"power": "power, of the limit"}.get(name, TITLES.get(name, name)), points)
        if len(points) > 1
        else None
    )
