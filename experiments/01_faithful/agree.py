"""Do the PTX machine and the hardware agree? Same bytes in, same PTX, every output compared; and
the fp32 sums behind them.

    python experiments/01_faithful/agree.py hardware     # on a GPU: bits to agree.npz, errors
                                                         against float64 to agree.jsonl
    python experiments/01_faithful/agree.py machine      # anywhere: the same launches on the PTX
                                                         machine, compared with agree.npz
    python experiments/01_faithful/agree.py report       # table into README.md

Nothing may differ: the machine adds an ``mma``'s products and its accumulator as Hopper's tensor
cores do (``emulator.tensor.tensor_sums``), also where that rounds. Most telling are the fp32
partial sums that blocks leave to each other: there no fp16 rounding hides anything.
"""

import argparse
import datetime
import hashlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from problems import OUTPUTS, Case, Launch, warm_cache

from numba_marlin import compiler, reference
from numba_marlin.bench.environment import commit, versions
from numba_marlin.execution import driver
from numba_marlin.formats import QuantizedWeight
from numba_marlin.layout.fragments import MMA_M16N8K16_C
from numba_marlin.layout.stripes import stripes
from numba_marlin.quantizers import dequantize

# m, n, k, group size
SHAPES = (
    (1, 64, 64, 32),
    (1, 256, 1024, 128),
    (5, 192, 192, 64),
    (16, 256, 256, -1),
    (16, 256, 1024, 128),
    (16, 256, 1024, -1),
    (17, 128, 832, 64),
    (33, 192, 512, 32),
    (40, 256, 1024, 32),
    (64, 256, 512, 128),
    (64, 128, 1024, -1),
)
SPREAD = ((5, 192, 192, 64), (16, 256, 1024, 128), (64, 128, 1024, -1))
EXACT = (
    (1, 64, 64, 32),
    (16, 256, 256, -1),
    (16, 256, 1024, 128),
    (17, 128, 832, 64),
    (64, 128, 1024, -1),
)
WIDE, DEEP = (16, 4), (8, 8)
LADDER = ("naive", "tiled", "ampere")


def all_cases():
    for data, shapes in (("gaussian", SHAPES), ("spread", SPREAD), ("exact", EXACT)):
        for shape in shapes:
            for name in LADDER:
                if name != "ampere":
                    yield Case(name, *shape, data)
                    continue
                m, _, k, _ = shape
                yield Case(name, *shape, data, DEEP if m <= 16 else WIDE, 7 if k == 1024 else 3)
                if m == 16 and k == 1024:
                    yield Case(name, *shape, data, WIDE, 5)


def run_on_hardware(launch, compiled):
    """{"c": ..., "partials": ...} as the GPU left them."""
    from numba_marlin.execution.launch import launcher

    arrays = {name: driver.DeviceArray.from_host(array) for name, array in launch.buffers.items()}
    launcher(compiled)(
        launch.case.grid, (*(array.address for array in arrays.values()), *launch.sizes)
    )
    driver.synchronize(0)
    return {name: arrays[name].to_host() for name in OUTPUTS if name in arrays}


def run_on_machine(launch, ptx, compiled_entry, threads, shared_bytes):
    from numba_marlin.emulator import Machine

    machine = Machine(ptx)
    addresses = [
        machine.memory.buffer(array, name=name, readonly=name not in OUTPUTS).address
        for name, array in launch.buffers.items()
    ]
    machine.run(
        compiled_entry,
        grid=launch.case.grid,
        block=threads,
        shared_bytes=shared_bytes,
        args=[*addresses, *launch.sizes],
    )
    return {name: launch.buffers[name] for name in OUTPUTS if name in launch.buffers}


def shared_sums(case, partials):
    """The fp32 sums that the blocks of a shared slice left for its top block: (first row, first
    column, first k, float32 [rows, columns]) each. They hold x @ W from that k on; not scaled yet
    where there is a scale per column."""
    config = case.config
    tile_m, tile_n, tile_k = (
        16 * config.thread_m_blocks,
        16 * config.thread_n_blocks,
        16 * config.thread_k_blocks,
    )
    slots = partials.reshape(-1, config.warps_n, config.thread_m_blocks, 8, 32, 4)
    for stripe in stripes(
        -(-case.k // tile_k), -(-case.n // tile_n), -(-case.m // tile_m), case.grid[0]
    ):
        for part in stripe.slices:
            if part.is_last and not part.is_first:
                sums = (
                    MMA_M16N8K16_C.scatter(slots[stripe.block])
                    .transpose(1, 3, 0, 2, 4)
                    .reshape(tile_m, tile_n)
                )
                row, column = part.parallel * tile_m, part.n_tile * tile_n
                yield (
                    row,
                    column,
                    (part.first_k_tile + part.iterations) * tile_k,
                    sums[: case.m - row, : case.n - column],
                )


def exact_sums(launch):
    """For every one of ``shared_sums``: (float64 sum, sum |x||w|), over the fp16 weights the kernel
    multiplies by."""
    x, weight = launch.operands
    if weight.per_column:  # the scale comes later
        weight = QuantizedWeight(weight.codes, np.ones_like(weight.scales))
    exact = dequantize(weight).astype(np.float64)
    for row, column, first_k, sums in shared_sums(launch.case, launch.buffers["partials"]):
        rows, columns = slice(row, row + sums.shape[0]), slice(column, column + sums.shape[1])
        part = x[rows].astype(np.float64)
        part[:, :first_k] = 0
        yield part @ exact[:, columns], np.abs(part) @ np.abs(exact[:, columns])


def ordered(bits16):
    """fp16 bits as integers in the order of their values: neighbours differ by one."""
    signed = bits16.astype(np.int32)
    return np.where(signed & 0x8000, 0x8000 - signed, signed)


def quantiles(values):
    return {str(q): float(f"{np.quantile(values, q):.4g}") for q in (0.5, 0.9, 0.99, 1.0)}


def against_float64(launch, found):
    """How a run's results differ from the reference: c in fp16 steps of the result and under its
    bound, partial sums in 2**-24 sum |x||w|."""
    x, weight = launch.operands
    report = reference.check(found["c"], x, weight)
    expected = reference.matmul(x, weight)
    steps = np.abs(found["c"].astype(np.float64) - expected) / np.spacing(
        np.abs(expected).astype(np.float16)
    ).astype(np.float64)
    record = {
        "within_bound": report.ok,
        "max_error_over_bound": round(report.max_ratio, 4),
        "error_in_fp16_steps": quantiles(steps),
    }
    return {
        **record,
        **(partials_against_float64(launch, found["partials"]) if "partials" in found else {}),
    }


def partials_against_float64(launch, partials):
    units = []
    for (_, _, _, sums), (expected, magnitude) in zip(
        shared_sums(launch.case, partials), exact_sums(launch)
    ):
        towards_zero = (np.abs(expected) - np.abs(sums)) * 2.0**24
        units.append((towards_zero / np.where(magnitude == 0, 1, magnitude)).ravel())
    if not units:
        return {}
    units = np.concatenate(units)
    return {
        "partials": units.size,
        "partials_error": quantiles(np.abs(units)),
        "partials_mean_towards_zero": float(f"{units.mean():.3g}"),
    }


def compare(launch, machine, hardware):
    """The record of both runs of one launch."""
    mine, theirs = (run["c"].view(np.uint16) for run in (machine, hardware))
    record = {
        "outputs": mine.size,
        "identical": int((mine == theirs).sum()),
        "max_fp16_steps": int(np.abs(ordered(mine) - ordered(theirs)).max()),
    }
    if "partials" in machine:
        sums = [
            [each.view(np.uint32).ravel() for *_, each in shared_sums(launch.case, run["partials"])]
            for run in (machine, hardware)
        ]
        mine, theirs = (np.concatenate([np.zeros(0, np.uint32), *each]) for each in sums)
        (
            record.update(partials=mine.size, partials_identical=int((mine == theirs).sum()))
            if mine.size
            else None
        )
    return record


def same_bits(record):
    return record["identical"] == record["outputs"] and record.get(
        "partials_identical"
    ) == record.get("partials")


def append(path, rows):
    with open(path, "a", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def describe(what, case, compiled_by, digest):
    return {
        "what": what,
        "case": case.label,
        **asdict(case),
        "compiler": compiled_by,
        "operands_sha256": digest,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": versions(),
    }


def hardware(args):
    device, cases, compilers = driver.describe(0), list(all_cases()), compiler.available_compilers()
    start = time.perf_counter()
    print(
        f"{len(cases)} problems, compilers {', '.join(compilers)};"
        f" {warm_cache(cases, compilers, device.target)} kernels built in"
        f" {time.perf_counter() - start:.0f} s",
        flush=True,
    )
    saved, rows = {}, []
    for case in cases:
        launch = Launch(case)
        first = None
        for by in compilers:
            compiled = case.build(by, device.target)
            found = run_on_hardware(launch, compiled)
            if "locks" in found and found["locks"].any():
                raise SystemExit(f"{case.label}, {by}: locks {found['locks']} are not zero")
            first = first or found
            same = all(
                np.array_equal(found[name].view(np.uint8), first[name].view(np.uint8))
                for name in found
            )
            text = compiled.ptx.encode()
            ptx = hashlib.sha256(text).hexdigest()
            saved.setdefault(f"ptx/{ptx}", np.frombuffer(text, np.uint8))
            saved[f"of/{case.label}/{by}"] = np.array(
                [
                    launch.digest,
                    ptx,
                    compiled.entry,
                    str(compiled.threads),
                    str(compiled.shared_bytes),
                ]
            )
            saved.update(
                {
                    f"{name}/{case.label}/{by}": found[name]
                    for name in ("c", "partials")
                    if name in found
                }
            )
            rows.append(
                {
                    **describe("hardware", case, by, launch.digest),
                    "device": device.name,
                    "driver": driver.probe().driver_version,
                    "ptx_sha256": ptx,
                    "same_bits_as": compilers[0],
                    "same_bits": same,
                    **against_float64(launch, found),
                }
            )
            bits = "" if same else f"OTHER BITS than {compilers[0]}"
            bound = "" if rows[-1]["within_bound"] else " OUT OF BOUND"
            print(f"{case.label:58} {by:15} {bits}{bound}", flush=True)
    np.savez_compressed(args.save, **saved)
    append(args.out, rows)
    print(
        f"{args.save}: {os.path.getsize(args.save) / 1e6:.1f} MB; {args.out}: {len(rows)} rows;"
        f" {time.perf_counter() - start:.0f} s"
    )
    return 0 if all(row["same_bits"] and row["within_bound"] for row in rows) else 1


def machine(args):
    saved, rows = np.load(args.save), []
    runs = [name.split("/", 1)[1].rsplit("/", 1) for name in saved.files if name.startswith("of/")]
    known = {case.label: case for case in all_cases()}
    for label, by in runs:
        launch = Launch(known[label])
        digest, ptx, entry, threads, shared_bytes = saved[f"of/{label}/{by}"].tolist()
        if launch.digest != digest:
            raise SystemExit(
                f"{label}: the operands made here are not those that the hardware had (SHA-256"
                f" {launch.digest[:12]}, {digest[:12]} there)"
            )
        found = run_on_machine(
            launch, saved[f"ptx/{ptx}"].tobytes().decode(), entry, int(threads), int(shared_bytes)
        )
        there = {name: saved[f"{name}/{label}/{by}"] for name in ("c", "partials") if name in found}
        record = compare(launch, found, there)
        rows.append(
            {
                **describe("machine", launch.case, by, digest),
                "ptx_sha256": ptx,
                **record,
                **(
                    partials_against_float64(launch, found["partials"])
                    if record.get("partials")
                    else {}
                ),
            }
        )
        sums = (
            f", {record['partials_identical']}/{record['partials']} partial sums"
            if "partials" in record
            else ""
        )
        print(
            f"{label:58} {by:15} {record['identical']}/{record['outputs']}"
            f" identical{sums}{'' if same_bits(record) else '  OTHER BITS'}",
            flush=True,
        )
    append(args.out, rows)
    return 0 if all(map(same_bits, rows)) else 1


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("hardware", "machine", "report"))
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE / "agree.jsonl",
        help="rows are appended to it (default: agree.jsonl beside this file)",
    )
    parser.add_argument(
        "--save",
        type=Path,
        default=HERE / "agree.npz",
        help="the hardware's bits (default: agree.npz beside this file)",
    )
    args = parser.parse_args(argv)
    if args.command == "report":
        from agree_report import report

        return report(args.out, HERE / "README.md")
    return hardware(args) if args.command == "hardware" else machine(args)


if __name__ == "__main__":
    sys.exit(main())
