"""Conclusions from a profile by stated rules: advice. (``verdict`` names the bottleneck.)

``findings(data) -> [Finding]``: every rule is a function of the profile (``profile.build``), one of
them also of the times that experiments recorded. It has its condition, its sentence and the figures
that it uses in one place.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.kernels import registry
from numba_marlin.profile.build import reason_of
from numba_marlin.profile.sources import model
from numba_marlin.profile.sources.verdict import (
    DIVERGED,
    HIGH,
    bottleneck,
    few_warps,
    is_bound,
    recorded_words,
    shares,
    waiting,
)
from numba_marlin.views import MEASURED

GOOD, WARN, BAD = "good", "hot", "bad"


@dataclass(frozen=True)
class Finding:
    """``rule``: its condition in words; ``tone``: good, hot (worth a look) or bad; ``text``: with
    the numbers."""

    rule: str
    tone: str
    text: str


def findings(data: dict) -> list[Finding]:
    return [found for rule in RULES if (found := rule(data)) is not None]


def memory_is_busy(data):
    share = data["rates"]["memory_share"]
    if share is not None and share >= HIGH:
        return Finding(
            f"memory moves at {HIGH:.0%} of its ceiling or more",
            GOOD,
            f"memory bandwidth is {share:.0%} used: fewer bytes (a larger group, fewer bits) would"
            " help, faster arithmetic would not",
        )
    return None


def tensor_cores_are_busy(data):
    share = data["rates"]["tensor_share"]
    if share is not None and share >= HIGH:
        return Finding(
            f"tensor cores run at {HIGH:.0%} of their ceiling or more",
            GOOD,
            f"tensor cores are {share:.0%} used",
        )
    return None


def rows_are_padded(data):
    flops, useful = data["counts"]["flops"], data["rates"]["flops"]
    if useful and flops > 1.2 * useful:
        return Finding(
            "tensor cores do 1.2 times the operations of the product or more",
            WARN,
            f"tensor cores do {flops / useful:.1f} times the operations that"
            f" m={data['problem']['m']} needs: batch rows that only fill up the tile",
        )
    return None


def few_blocks(data):
    launch, sms = data["launch"], data["device"]["sms"]
    if launch["blocks"] >= sms:
        return None
    idle = sms - launch["blocks"]
    if launch["dependent"] and idle >= launch["blocks"] and launch.get("reads_early", True):
        return Finding(
            "fewer blocks than half of the SMs, and launches may overlap",
            GOOD,
            f"{launch['blocks']} blocks leave {idle} of {sms} SMs free: the launch"
            " behind begins there",
        )
    more = (
        "larger clusters, or tiles of fewer columns,"
        if data["launch"]["cluster"] > 1
        else "a kernel that shares tiles along k"
    )
    return Finding(
        "fewer blocks than SMs",
        BAD if launch["blocks"] < 0.8 * sms else WARN,
        f"{launch['blocks']} blocks leave {idle} of {sms} SMs idle: {more} would use them",
    )


def launch_and_tail(data):
    if is_bound(data):  # shares of a lower bound are shares of nothing
        return None
    idle = waiting(data)
    share = idle.get("launch", 0.0) + idle.get("tail", 0.0)
    if share > 0.15:
        return Finding(
            "launch and tail take more than 15% of the time",
            WARN,
            f"{share:.0%} of an average warp's time is before it starts or after it ended: "
            + (
                "blocks of unequal length, or roles that end early"
                if idle.get("tail", 0) > idle.get("launch", 0)
                else "the launch is too short to fill"
            ),
        )
    return None


def waits(data):
    idle = {name: value for name, value in waiting(data).items() if name not in ("launch", "tail")}
    if is_bound(data) or not idle or max(idle.values()) <= 0.25:
        return None
    most = max(idle, key=lambda name: idle[name])
    memory, used = data["rates"]["memory_share"] or 0, shares(data)
    busiest = max(used, key=lambda name: used[name])
    if used[busiest] >= HIGH and busiest != "memory bandwidth":
        return Finding(
            "a kind of waiting takes more than 25% of a warp's time, while a resource is used to"
            " 60% or more",
            GOOD,
            f"{idle[most]:.0%} of the time waits for {reason_of(most)}: {busiest} is"
            f" {used[busiest]:.0%} used, others have to wait",
        )
    advice = {
        "wait_copies": (
            "memory is near its ceiling: that is what it should look like"
            if memory >= HIGH
            else (
                "memory is not at its ceiling: more stages, or more bytes per stage, would keep"
                " more in flight"
            )
        ),
        "wait_barrier": (
            "warps of a block wait for each other at every step: fewer barriers, or mbarriers that"
            " only the consumers of a stage wait for"
        ),
        "wait_block": "blocks take turns: parts whose last arrival adds up would not wait",
        "wait_room": "copies come faster than they are consumed: the consumers are the limit",
        "wait_role": (
            "one role of the block is slower than the others: more warps for it, or more stages"
            " between them"
        ),
        "wait_kernel": "the launch before this one has not ended: nothing of this one's making",
        "latency": "the model cannot say what for: run it on a GPU",
    }[most]
    return Finding(
        "a kind of waiting takes more than 25% of a warp's time",
        GOOD if most == "wait_copies" and memory >= HIGH else WARN,
        f"{idle[most]:.0%} of the time waits for {reason_of(most)}: {advice}",
    )


def coalescing(data):
    share = data["counts"]["coalescing"]
    if share >= 99:
        return Finding(
            "99% of the sectors touched are needed",
            GOOD,
            f"global accesses are coalesced: {share:.1f}% of the sectors touched would do",
        )
    worst = min(
        (row for row in data["accesses"] if row["sectors"]),
        key=lambda row: (
            row["needed"] / row["sectors"]
            if row["sectors"] > 0.01 * sum(each["sectors"] for each in data["accesses"])
            else 1
        ),
        default=None,
    )
    where = (
        ""
        if worst is None
        else (
            f"; worst: {worst['opcode']} of {worst['verb']},"
            f" {worst['needed'] / worst['sectors']:.0%}"
        )
    )
    return Finding(
        "sectors are touched that are not needed",
        WARN if share >= 90 else BAD,
        f"{100 - share:.1f}% of the sectors touched are waste{where}",
    )


def bank_conflicts(data):
    counts = data["counts"]
    share = counts["conflicts"] / counts["wavefronts"] if counts["wavefronts"] else 0.0
    if share > 0.05:
        worst = max(data["accesses"], key=lambda row: row["wavefronts"] - row["ideal"])
        return Finding(
            "more than 5% of shared memory's wavefronts are conflicts",
            WARN,
            f"{share:.0%} of shared memory's wavefronts are bank conflicts, most of them"
            f" {worst['opcode']} of {worst['verb']}",
        )
    if counts["wavefronts"]:
        return Finding(
            "at most 5% of shared memory's wavefronts are conflicts",
            GOOD,
            f"shared memory: {counts['conflicts']:,} conflicts in {counts['wavefronts']:,}"
            " wavefronts",
        )
    return None


def divergence(data):
    share = data["counts"].get("partial_share")
    if share is None:  # a profile of an earlier version
        return None
    return Finding(
        f"{'more than' if share > DIVERGED else 'at most'} {DIVERGED:.0%} of warp instructions are"
        " executed by a part of a warp",
        WARN if share > DIVERGED else GOOD,
        f"divergence: {share:.1%} of warp instructions are executed by lanes that a branch has"
        " parted from the others of their warp",
    )


def reads_again(data):
    again = [each for each in data["counts"]["buffers"] if each["name"] == "b"]
    weights = data["problem"]["k"] * data["problem"]["n"] * data["problem"]["bits"] // 8
    weights = data.get("bytes", {}).get("weights", weights)  # of a mixture several experts'
    if again and again[0]["read"] > 1.05 * weights:
        return Finding(
            "weights are asked for more than once",
            WARN,
            f"weights are asked for {again[0]['read'] / weights:.1f} times: once for every row of"
            " tiles; what L2 does not keep comes from memory again",
        )
    if again:
        return Finding("weights are asked for once", GOOD, "every weight is read once")
    return None


def latency_of_instructions(data):
    """Warps work, nothing is busy, and there are few of them."""
    if is_bound(data) or bottleneck(data)[0] != "instruction latency":
        return None
    found = data["occupancy"]
    if found["achieved"] >= 0.25:
        return None
    room = (
        f"the grid brings {found['launched_warps']:g} of the {found['warps']} that fit"
        if found["launched_warps"] < found["warps"]
        else f"{found['warps']} fit, limited by {found['limited_by']}"
    )
    return Finding(
        "no resource is used to 60%, warps work most of their time, and achieved occupancy is below"
        " 25%",
        WARN,
        f"{few_warps(data)}. More warps per SM ({room}), or more independent instructions per warp,"
        " would fill the cycles",
    )


def faster_kernels(data):
    """What experiments recorded of this product on this device, with other kernels."""
    rows = [
        row
        for row in model.of_size(*(data["problem"][name] for name in ("m", "n", "k")))
        if row["kernel"] != data["kernel"]
        and registry.is_kernel(row["kernel"])
        and model.is_of(row, data["device"]["name"])
        and model.problem_of(row).to_dict() == data["problem"]
    ]
    best = min(rows, key=lambda row: row["us"], default=None)
    if best is None or 1.05 * best["us"] > data["time"]["us"]:
        return None
    return Finding(
        "another kernel was measured to take at least 5% less time for this product",
        WARN,
        f"{best['kernel']} took {recorded_words(best)}, for this product:"
        f" {data['time']['us'] / best['us']:.2f} times as fast",
    )


def tried_neighbours(data):
    found = data.get("tried") or {}
    if found.get("source") != MEASURED:
        return None
    own, *others = found["rows"]
    faster = [row for row in others if row["verdict"] == "faster"]
    if not faster:
        return Finding(
            "neighbouring configurations were timed in the same rounds",
            GOOD,
            f"of {len(others)} configurations one field away none is faster",
        )
    best = min(faster, key=lambda row: row["us"])
    return Finding(
        "a neighbouring configuration was timed faster in the same rounds",
        WARN,
        f"{best['change']}: {best['us']:.2f} us in place of {own['us']:.2f}"
        f" ({best['change_by']:+.1%}, on {found['device']})",
    )


def occupancy_limits(data):
    found = data["occupancy"]
    idle = sum(value for name, value in waiting(data).items() if name not in ("launch", "tail"))
    if found["share"] < 0.25 and idle > 0.5:
        return Finding(
            "less than 25% occupancy, and warps wait more than half of the time",
            WARN,
            f"{found['warps']} warps fit on an SM, limited by {found['limited_by']};"
            " more would hide waits",
        )
    return None


def spills(data):
    spilled = data["launch"]["spill_bytes"]
    if spilled:
        return Finding(
            "registers are spilled",
            BAD,
            f"{spilled} bytes of registers per thread are spilled: a smaller tile would do without",
        )
    return (
        Finding("no register is spilled", GOOD, "no register is spilled") if spilled == 0 else None
    )


def held_back(data):
    throttle = data["state"].get("throttle")
    if throttle:
        return Finding(
            "clocks were held back",
            WARN,
            f"clocks were held back by {', '.join(throttle)}: times are those of"
            f" {data['state'].get('sm_mhz', '?')} MHz",
        )
    return None


def beside_cublas(data):
    cublas = data["time"].get("cublas_us")
    if cublas:
        ratio = cublas / data["time"]["us"]
        return Finding(
            "timed beside cuBLAS fp16",
            GOOD if ratio >= 1 else BAD,
            f"{ratio:.2f} times as fast as cuBLAS with fp16 weights in the same rounds"
            f" ({cublas:.1f} us)",
        )
    return None


RULES = (
    memory_is_busy,
    tensor_cores_are_busy,
    rows_are_padded,
    few_blocks,
    launch_and_tail,
    waits,
    coalescing,
    bank_conflicts,
    divergence,
    reads_again,
    occupancy_limits,
    latency_of_instructions,
    faster_kernels,
    tried_neighbours,
    spills,
    held_back,
    beside_cublas,
)
