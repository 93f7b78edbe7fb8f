"""The bottleneck of a profile (``profile.build``): ``bottleneck(data)`` names the largest of the
shares it lists; and what these shares are of."""

from __future__ import annotations

from numba_marlin.hardware.limits import SM_SCHEDULERS
from numba_marlin.profile.build import reason_of, title_of
from numba_marlin.profile.instrument.sections import BY_NAME

HIGH = 0.6  # share of a ceiling that calls it busy
LOW = 0.3  # and below which it is called low
DIVERGED = 0.05  # share of warp instructions of parted lanes that calls a kernel divergent


def shares(data: dict) -> dict[str, float]:
    """By name: the launch's utilisation of each resource, and the share of an average warp's time
    that is waiting."""
    rates, us = data["rates"], data["time"]["us"]
    found = {
        "memory bandwidth": rates["memory_share"],
        "tensor cores": rates["tensor_share"],
        "instruction issue": rates["issue_share"],
    }
    return {name: min(1.0, value) for name, value in found.items() if value is not None and us}


def verdicts(data: dict) -> list[tuple[str, float, str]]:
    """(what, share, verdict) of compute, memory, occupancy and divergence, each by itself: "low"
    below ``LOW``, "busy" (of occupancy: "high") from ``HIGH`` on, else "middling"; of divergence,
    where little is good, "none", "little" or "much"."""
    used, found = shares(data), data["occupancy"]
    rows = [
        (name, used[key], "low" if used[key] < LOW else "busy" if used[key] >= HIGH else "middling")
        for name, key in (
            ("compute: tensor cores", "tensor cores"),
            ("compute: issue slots", "instruction issue"),
            ("memory", "memory bandwidth"),
        )
        if key in used
    ]
    share = found["achieved"]
    rows.append(
        ("occupancy", share, "low" if share < LOW else "high" if share >= HIGH else "middling")
    )
    parted = data["counts"].get("partial_share")
    if parted is not None:
        word = "none" if not parted else "little" if parted <= DIVERGED else "much"
        rows.append(("divergence", parted, word))
    return rows


def waiting(data: dict) -> dict[str, float]:
    """Part -> share of an average warp's time, for the parts in which it does nothing."""
    total = sum(data["parts"]["us"].values()) or 1.0
    return {name: value / total for name, value in data["parts"]["us"].items() if reason_of(name)}


def is_bound(data: dict) -> bool:
    """Whether the time is only a lower bound, so that all rates and shares are upper bounds."""
    time = data["time"]
    return not (data["measured"] or time["fitted"] or time.get("recorded"))


def recorded_words(row: dict) -> str:
    """A time of an experiment, with its device and its day."""
    return f"{row['us']:.2f} us on {row['device']}, measured on {row['date']}"


def named_shares(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0%}" for name, value in found.items())


def bottleneck(data: dict) -> tuple[str, str]:
    """(what, why). It is the most used resource if that is used to 60% or more, otherwise what
    takes most of an average warp's time: a wait, or work that too few warps share. Not known if the
    time is a lower bound."""
    used = shares(data)
    busiest = max(used, key=lambda name: used[name])
    if is_bound(data):
        return (
            "not known",
            f"the time is a lower bound; were it met, {named_shares(used)} would be used",
        )
    if used[busiest] >= HIGH:
        return busiest, f"{used[busiest]:.0%} of its ceiling, the most of {named_shares(used)}"
    idle, work = waiting(data), working(data)
    because = f"no resource is used to {HIGH:.0%} ({named_shares(used)})"
    parts = idle | work
    if not parts:
        return "latency", because
    most = max(parts, key=lambda name: parts[name])
    if most in work:
        return (
            "instruction latency",
            f"{because}; {work[most]:.0%} of a warp's time is in `{title_of(most)}`, where"
            f" {few_warps(data)}",
        )
    return (
        title_of(most).split(":")[0],
        f"{because}; {idle[most]:.0%} of a warp's time goes there, to {reason_of(most)}",
    )


def working(data: dict) -> dict[str, float]:
    """Part -> share of an average warp's time, for the parts in which it executes instructions."""
    total = sum(data["parts"]["us"].values()) or 1.0
    return {
        name: value / total
        for name, value in data["parts"]["us"].items()
        if name in BY_NAME and not reason_of(name)
    }


def few_warps(data: dict) -> str:
    """How many warps a scheduler chooses from, in words."""
    found, issued = data["occupancy"], shares(data)["instruction issue"]
    return (
        f"each scheduler has {found['achieved_warps'] / SM_SCHEDULERS:.1f} warps to choose from"
        f" ({found['achieved']:.0%} occupancy) and issues in {issued:.0%}"
        " of its cycles: the others pass while instructions wait for the results of those before"
    )
