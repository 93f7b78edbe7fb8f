"""Does a warp's wgmma.wait_group say that all four warps' parts of the product are done?

    python experiments/05_hardware/warpgroup.py hardware --out RESULTS.json   # on a Hopper GPU,
        half a minute
    python experiments/05_hardware/warpgroup.py machine    # two of the kernels on the PTX machine
    python experiments/05_hardware/warpgroup.py sass       # what ptxas makes of fence, commit, wait
    python experiments/05_hardware/warpgroup.py report [--results RESULTS.json]   # warpgroup.json
        from the results, and README.md's table from that

``warpgroup_kernel`` has the kernels. A row is one of them with its settings: what part of the late
warp's and of the other warps' results were made of operands overwritten too late (0: none, 1: all),
and how many cycles passed between moments of different warps.
"""

import argparse
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from warpgroup_kernel import A_BYTES, DEPTH_BYTES, PLACES, SETTINGS, STAMPS, WARPS, Shape

from numba_marlin.bench.tables import markdown, replace_between
from numba_marlin.witness.probe import assembled, machine_code

SAVED = HERE / "warpgroup.json"
MARKERS = ("<!-- warpgroup: begin -->", "<!-- warpgroup: end -->")
BLOCKS, ASSEMBLERS, BUSY_ROUNDS = 8, 16, 2000
DELAYS = (0, 1000, 20000, 200000)
SHOWN = 20000  # nanoseconds: what is printed at once
WIDTHS, COUNTS = (8, 256), (1, 8)
LIMIT = 50.0  # seconds: a visit to a GPU is short, what does not fit in is left out and named
AT = {name: number for number, name in enumerate(STAMPS)}


def shapes() -> list[Shape]:
    found = []
    for columns in WIDTHS:
        for products in COUNTS:
            places = [place for place in PLACES if place != "middle" or products > 1]
            for place in places:
                found += [
                    Shape(columns, products, False, place, early=True),
                    Shape(columns, products, False, place),
                    Shape(columns, products, True, place),
                ]
                if products > 1:
                    found.append(Shape(columns, products, False, place, left=products // 2))
    return found


def settings_of(shape: Shape) -> list[dict]:
    """What a shape is asked: by SETTINGS, and "target" and "others" for people."""
    taken = shape.products - shape.left if shape.left else shape.products
    whole = {"first": A_BYTES, "bytes": taken * shape.columns * DEPTH_BYTES}
    rows = []
    for late in range(WARPS):
        everybody, one = 0xF ^ 1 << late, 1 << (late + 1) % WARPS
        same = {"late": late, "rounds": BUSY_ROUNDS, "busy": 0, "proxy": 0, **whole}
        for delay in DELAYS:
            rows += [
                {**same, "nanoseconds": delay, "writers": writers, "proxy": proxy, "target": "B"}
                for writers in (everybody, one)
                for proxy in (0, 1)
                if writers == everybody or not proxy
            ]
            if not shape.registers and not shape.left:  # all products read the one A
                rows.append(
                    {
                        **same,
                        "nanoseconds": delay,
                        "writers": everybody,
                        "first": 512 * late,
                        "bytes": 512,
                        "target": "A",
                    }
                )
        if shape.place == "wait":
            rows.append(
                {
                    **same,
                    "nanoseconds": 0,
                    "writers": everybody,
                    "busy": 1 << WARPS + late,
                    "target": "B",
                }
            )
    return rows


class Kernel:
    """A shape's kernel on device 0, with its memory there."""

    def __init__(self, shape: Shape):
        from numba_marlin.execution import driver
        from numba_marlin.execution.launch import Launcher

        self.shape, self.driver = shape, driver
        probe = shape.probe(BLOCKS)
        self.arrays = {
            name: driver.DeviceArray.from_host(array) for name, array in probe.buffers().items()
        }
        self.launch = Launcher(assembled(probe, tuple(self.arrays)), 0)

    def __call__(self, row: dict) -> dict[str, np.ndarray]:
        words = np.array([row[name] for name in SETTINGS], np.uint32)
        there = {**self.arrays, "settings": self.driver.DeviceArray.from_host(words)}
        self.launch((BLOCKS,), tuple(array.address for array in there.values()))
        self.driver.synchronize(0)
        return {name: there[name].to_host() for name in ("stamps", "out")}


def judged(shape: Shape, row: dict, results: dict[str, np.ndarray]) -> dict:
    """A row of what was found. Shares are of results' terms, cycles are signed: extremes over all
    blocks."""
    late, old = row["late"], 16.0 * shape.products
    out = results["out"].reshape(len(results["out"]), WARPS, -1)
    share = (out.astype(np.float64) / old - 1).clip(-9, 9)
    if row["target"] == "A":
        share = share[:, [late]]
    early = [warp for warp in range(WARPS) if warp != late]
    stamps = results["stamps"].astype(np.int64)
    found = {
        "shape": shape.name,
        "columns": shape.columns,
        "products": shape.products,
        "registers": shape.registers,
        "place": shape.place,
        "left": shape.left,
        "early": shape.early,
        **{name: row[name] for name in (*SETTINGS, "target")},
        "late_new": _extremes(share[:, -1 if row["target"] == "A" else late], 4),
        "changed": int((share != 0).sum()),
        "results": int(share.size),
    }
    if row["target"] == "B":
        found["others_new"] = _extremes(share[:, early], 4)
    held = {"fence": "fence", "product": "product", "middle": "issued", "commit": "commit"}
    begins = stamps[:, late, AT[held.get(shape.place, "wait")]]
    others = stamps[:, early]
    moments = {
        # how long the late warp was behind, and what the others spent where
        "late_held": begins - stamps[:, late, AT["start"]],
        "others_fence": others[..., AT["fenced"]] - others[..., AT["fence"]],
        "others_issue": others[..., AT["issued"]] - others[..., AT["product"]],
        "others_wait": others[..., AT["waited"]] - others[..., AT["wait"]],
        "late_wait": stamps[:, late, AT["waited"]] - stamps[:, late, AT["wait"]],
        # above 0: no other warp's wait ended before the late warp had come to its first product,
        # had issued its last, had come to its own wait, had ended it
        "waited_after_late_product": others[..., AT["waited"]] - stamps[:, [late], AT["product"]],
        "waited_after_late_issued": others[..., AT["waited"]] - stamps[:, [late], AT["issued"]],
        "waited_after_late_wait": others[..., AT["waited"]] - stamps[:, [late], AT["wait"]],
        "waited_after_late_waited": others[..., AT["waited"]] - stamps[:, [late], AT["waited"]],
    }
    found |= {name: _extremes(values, 0) for name, values in moments.items()}
    if row["busy"]:
        beside = stamps[:, WARPS + late]
        found["busy_beyond"] = _extremes(beside[:, AT["end"]] - stamps[:, late, AT["waited"]], 0)
    return found


def _extremes(values: np.ndarray, digits: int) -> list:
    ends = [float(values.min()), float(values.max())]
    return [round(end, digits) if digits else int(end) for end in ends]


def hardware(args) -> int:
    from numba_marlin.execution import driver

    begun, probed = time.perf_counter(), driver.probe()
    if not probed.usable:
        print(f"no usable GPU: {probed.reason}")
        return 1
    device, every, rows, left_out = probed.devices[0], shapes(), [], []
    with ThreadPoolExecutor(ASSEMBLERS) as pool:
        list(pool.map(lambda shape: machine_code(shape.probe(BLOCKS).text), every))
    print(f"{len(every)} kernels assembled, {time.perf_counter() - begun:.1f} s", flush=True)
    for shape in every:
        if time.perf_counter() - begun > LIMIT:
            left_out.append(shape.name)
            continue
        kernel = Kernel(shape)
        rows += [judged(shape, row, kernel(row)) for row in settings_of(shape)]
    about = {
        "device": device.name,
        "arch": device.arch,
        "driver": probed.driver_version,
        "date": date.today().isoformat(),
        "blocks": BLOCKS,
        "left_out": left_out,
    }
    args.out.write_text(
        json.dumps({"about": about, "rows": rows}).replace('{"shape"', '\n{"shape"') + "\n"
    )
    print(table(grouped(rows)))
    print(
        f"{device.name}: {len(rows)} launches of {BLOCKS} blocks, {len(left_out)} kernels left out,"
        f" {time.perf_counter() - begun:.0f} s"
    )
    return 0


def kind_of(row: dict) -> str:
    if row["early"]:
        return "overwritten before the wait"
    if row["left"]:
        return f"{row['left']} of {row['products']} groups left"
    return "tensor core busy" if row["busy"] else f"{row['products']} in flight"


def grouped(rows: list[dict]) -> list[dict]:
    """Extremes over what makes no difference: writers, proxy fences, where A is, which of the
    operands is overwritten, and which of the warps that are not the first is late."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        whose = "first" if row["late"] == 0 else "another"
        key = row["columns"], kind_of(row), row["place"], whose, row["nanoseconds"]
        groups.setdefault(key, []).append(row)
    found = []
    for (columns, kind, place, whose, delay), those in sorted(groups.items(), key=_order):
        row = {"columns": columns, "kind": kind, "place": place, "late": whose}
        row |= {"nanoseconds": delay, "early": those[0]["early"], "launches": len(those)}
        row |= {name: sum(each[name] for each in those) for name in ("changed", "results")}
        for name in those[0]:
            ends = [each[name] for each in those if name in each]
            if isinstance(ends[0], list):
                row[name] = [min(low for low, _ in ends), max(high for _, high in ends)]
        found.append(row)
    return found


def _order(item):
    columns, kind, place, whose, delay = item[0]
    return columns, kind, PLACES.index(place), whose == "another", delay


def _said(ends: list) -> str:
    low, high = ends
    return f"{low:,g}" if low == high else f"{low:,g} to {high:,g}"


def table(groups: list[dict]) -> str:
    """A line for each kind of product and place, of the delays that were asked for."""
    heads = (
        "product",
        "late warp",
        "before its",
        "late by, cycles",
        "launches",
        "results made of overwritten operands",
        "of",
        "others held at their products for",
        "at their wait for",
        "their wait ended behind the late warp's last product by",
    )
    lines = [
        (
            f"n{row['columns']}, {row['kind']}",
            row["late"],
            "middle product" if row["place"] == "middle" else row["place"],
            _said(row["late_held"]),
            f"{row['launches']:,}",
            f"{row['changed']:,}",
            f"{row['results']:,}",
            _said(row["others_issue"]),
            _said(row["others_wait"]),
            _said(row["waited_after_late_issued"]),
        )
        for row in groups
        if row["columns"] == WIDTHS[-1]
        and row["place"] != "commit"  # a part of the last product, see ``sass``
        and row["nanoseconds"] == (0 if row["kind"] == "tensor core busy" else SHOWN)
    ]
    return markdown(heads, lines, left=3)


def machine(args) -> int:
    """What the PTX machine says of them: with races looked for, and the results without."""
    from numba_marlin.emulator import Machine, MachineError

    for shape in (Shape(8, 1, False, "wait"), Shape(8, 1, False, "wait", early=True)):
        row = next(each for each in settings_of(shape) if each["writers"].bit_count() == 1)
        for races in (True, False):
            probe = shape.probe(1)
            buffers = probe.buffers()
            buffers["settings"][:] = [row[name] for name in SETTINGS]
            it = Machine(probe.text, races=races)
            there = [it.memory.buffer(array, name=name) for name, array in buffers.items()]
            try:
                it.run(
                    "probe",
                    grid=1,
                    block=probe.block,
                    shared_bytes=probe.shared_bytes,
                    args=[each.address for each in there],
                )
                said = f"terms overwritten: {judged(shape, row, buffers)['late_new']}"
            except MachineError as error:
                said = f"{type(error).__name__}: {error}"
            print(f"{shape.name}, races {'looked for' if races else 'not looked for'}: {said}\n")
    return 0


def sass(args) -> int:
    from numba_marlin.compiler.assemble import disassemble

    wanted = re.compile(r"HGMMA|WARPGROUP|WARPSYNC|NANOSLEEP|CLOCK|STS|BAR|FENCE")
    for shape in (
        Shape(8, 1, False, "commit"),
        Shape(256, 8, False, "middle"),
        Shape(8, 8, False, "wait", left=4),
    ):
        print(shape.name)
        for line in disassemble(machine_code(shape.probe(1).text)[0]).splitlines():
            if wanted.search(line):
                print("   ", re.sub(r"\s+", " ", line).strip())
    return 0


def report(args) -> int:
    if args.results is not None:
        found = json.loads(args.results.read_text(encoding="utf-8"))
        kept = {"about": found["about"], "groups": grouped(found["rows"])}
        text = json.dumps(kept).replace('{"columns"', '\n{"columns"') + "\n"
        SAVED.write_text(text, encoding="utf-8")
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    replace_between(HERE / "README.md", MARKERS, page(saved))
    return 0


def page(saved: dict) -> str:
    about, groups = saved["about"], saved["groups"]
    after = [row for row in groups if not row["early"]]
    figures = [sum(row[name] for row in after) for name in ("launches", "results", "changed")]
    return (
        f"{about['device']}, CUDA {about['driver']}, {about['date']}: overwritten after the wait in"
        f" {figures[0]:,} launches of {about['blocks']} blocks, of whose {figures[1]:,} results"
        f" {figures[2]:,} changed. Below, those of m64n{WIDTHS[-1]}k16 with a delay of"
        f" {SHOWN // 1000} µs (asked of `nanosleep`), least and most; warpgroup.json has the"
        " others.\n\n" + table(groups)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("hardware").add_argument("--out", type=Path, required=True)
    commands.add_parser("report").add_argument("--results", type=Path)
    for name in ("machine", "sass"):
        commands.add_parser(name)
    args = parser.parse_args()
    return {"hardware": hardware, "machine": machine, "sass": sass, "report": report}[args.command](
        args
    )


if __name__ == "__main__":
    sys.exit(main())
