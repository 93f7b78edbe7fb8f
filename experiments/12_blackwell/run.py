"""What does an NVFP4 GEMM move on Blackwell? Counted on the PTX machine, and compared with the
figures of a published walk-through of CUTLASS's kernel.

The walk-through analyses D = A B^T of 2048 x 2048 x 2048 in tiles of 128 x 128 x 256 (CUTLASS
example 72b). Here the same problem is multiplied by the kernel ``tcgen05`` in the same tiles, and
by ``block_mma``, on the PTX machine, and every byte is counted. The product is compared with the
float64 one first. Nothing is timed, because no such GPU is available here. Rewrites results.jsonl,
one object per kernel, and the tables in README.md.

    python experiments/12_blackwell/run.py [--size 2048] [--no-record]      # a minute and a half
    python experiments/12_blackwell/run.py report                           # the tables again, from
        results.jsonl
"""

import argparse
import datetime
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import numpy as np

import numba_marlin as nm
from numba_marlin import compiler, counts
from numba_marlin.bench.environment import commit
from numba_marlin.execution.binding import Scaling, bind, block_operands
from numba_marlin.execution.machine import set_up
from numba_marlin.kernels.nvfp4 import block_mma, tcgen05
from numba_marlin.kernels.nvfp4.block_mma import BlockMmaConfig
from numba_marlin.kernels.nvfp4.tcgen05 import Tcgen05Config
from numba_marlin.problems import BlockProblem
from numba_marlin.reference.operands import block_scaled_bounds, within_bounds

RESULTS = HERE / "results.jsonl"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
CASES = (
    (tcgen05.KERNEL, Tcgen05Config(), "sm_100a"),
    (block_mma.KERNEL, BlockMmaConfig(), "sm_120a"),
)
BLOCKS = 148  # of a B200
RESIDENT = 16  # on the machine at once
TILE, STEP_K = 128, 256
KIB, MIB = 1 << 10, 1 << 20


def count_case(kernel, config, target, size):
    """One object of results.jsonl."""
    generator = np.random.default_rng(0)
    a, b = (
        nm.quantize_blocks(generator.standard_normal((size, size)).astype(np.float32)).with_scales(
            "128x4"
        )
        for _ in range(2)
    )
    compiled = compiler.build(kernel, config, target)
    launch = set_up(
        bind(
            kernel,
            config,
            BlockProblem.of(config, size, size, size),
            block_operands(a, b),
            sms=BLOCKS,
            compiled=compiled,
            scaling=Scaling(a.global_scale * b.global_scale),
        )
    )
    start = time.perf_counter()
    result, found = counts.count(launch.machine, **launch.launch, resident_blocks=RESIDENT)
    seconds = time.perf_counter() - start
    exact, bound = block_scaled_bounds(a, b)
    d = launch.results["d"]
    if not within_bounds(d, exact, bound).all():
        raise SystemExit(f"{kernel.name}: wrong product, by up to {np.abs(d - exact).max()}")
    tally = found.total.tally
    return {
        "kernel": kernel.name,
        "config": repr(config),
        "target": target,
        "m": size,
        "n": size,
        "k": size,
        "blocks": result.blocks,
        "threads": compiled.threads,
        "shared_bytes": compiled.shared_bytes,
        "registers": compiled.resources.registers,
        "flops": tally.flops,
        "instructions": result.instructions,
        "copied": tally.copied,
        "operand_bytes": tally.operand_bytes,
        "tensor_memory": tally.tensor_memory,
        "shared_bytes_accessed": tally.shared.bytes,
        "shared_wavefronts": tally.shared.wavefronts,
        "shared_conflicts": tally.shared.conflicts,
        "largest_error": float(np.abs(d - exact).max()),
        "buffers": {
            each.name: {
                "read": each.reads.bytes,
                "read_distinct": each.read_distinct,
                "written": each.writes.bytes,
            }
            for each in found.buffers
        },
        "machine_seconds": round(seconds, 1),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": {"numpy": np.__version__},
    }


def amount(nbytes):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:,.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{nbytes:,.0f} B"


def comparison(row):
    """Rows (what, the walk-through's figure, counted, what to say of it) for the problem and tiles
    of the walk-through."""
    m, n, k = row["m"], row["n"], row["k"]
    tiles, steps, read = (
        (m // TILE) * (n // TILE),
        k // STEP_K,
        {name: each["read"] for name, each in row["buffers"].items()},
    )
    visits = tiles * steps
    stage = {name: read[name] / visits for name in ("a", "b", "sfa", "sfb")}
    asked, distinct = (
        sum(read[name] for name in stage),
        sum(row["buffers"][name]["read_distinct"] for name in stage),
    )
    written, flops = row["buffers"]["d"]["written"], row["flops"]
    scales, per_tile = row["tensor_memory"]["scales"] / visits, TILE * TILE
    fp4 = m * n // 2 + m * n // 16
    return [
        ("steps (tile, 256 of k)", "2,048", f"{visits:,}", "as stated"),
        ("multiplications and additions", "17.2 GFLOP", f"{flops / 1e9:.1f} GFLOP", "as stated"),
        ("A, a step", "16,384 B", amount(stage["a"]), "as stated"),
        ("B, a step", "16,384 B", amount(stage["b"]), "as stated"),
        (
            "SFA, a step",
            "16 B",
            amount(stage["sfa"]),
            "a scale for every row and 16 of k, not for 128 rows",
        ),
        ("SFB, a step", "16 B", amount(stage["sfb"]), "the same"),
        (
            "a stage of shared memory",
            "32 KB",
            amount(sum(stage.values())),
            "scales are a ninth of it",
        ),
        (
            "scales from shared to tensor memory, a step",
            "32 B",
            f"{amount(scales / 4)} read, {amount(scales)} written",
            "every warp's 32 lanes get all of them",
        ),
        (
            "operands that products read from shared memory, a step",
            "-",
            amount(row["operand_bytes"] / visits - scales / 4),
            "32 bytes of k of both tiles, four times",
        ),
        (
            "sums of a tile, tensor memory to registers",
            "65,536 B",
            amount(row["tensor_memory"]["loaded"] / tiles),
            "as stated: once a tile",
        ),
        (
            "D, a tile",
            "8 KB (FP4)",
            f"{amount(written / tiles)} (fp16)",
            f"FP4 would be {amount(per_tile // 2)}",
        ),
        (
            "scales of D, a tile",
            "64 B",
            "none (fp16)",
            f"a scale for every 16 of a row would be {amount(per_tile // 16)}",
        ),
        ("global memory asked for", "64 MB", amount(asked), "36 KiB a step, not 32"),
        (
            "of these, different bytes",
            "-",
            amount(distinct),
            f"what L2 must fetch at least: each is asked for {asked / distinct:.0f} times",
        ),
        (
            "written",
            "16 MB",
            amount(written),
            f"D is written once a tile, not once a step; in FP4 with scales {amount(fp4)}",
        ),
        (
            "FLOP a byte asked for or written",
            "215",
            f"{flops / (asked + written):.0f}",
            f"with FP4 results {flops / (asked + fp4):.0f}: two errors nearly cancel",
        ),
        (
            "FLOP a byte that memory must move",
            "-",
            f"{flops / (distinct + written):,.0f}",
            f"with FP4 results {flops / (distinct + fp4):,.0f}",
        ),
        (
            "threads a block",
            "160-192",
            f"{row['threads']}",
            "eight warps, with a scheduler and one that would load C",
        ),
        (
            "shared memory of a block",
            "64-96 KB",
            amount(row["shared_bytes"]),
            "four stages and the results on their way",
        ),
    ]


def tables(rows):
    by_name = {row["kernel"]: row for row in rows}
    first = by_name["tcgen05"]
    lines = [
        (
            f"{first['m']} x {first['n']} x {first['k']}, kernel `tcgen05`, tiles of 128 x 128,"
            f" {first['blocks']} blocks; counted {first['date']} at {first['commit']}."
        ),
        "",
        "| what | walk-through | counted | |",
        "|---|--:|--:|---|",
    ]
    lines += [f"| {' | '.join(cells)} |" for cells in comparison(first)]
    lines += [
        "",
        (
            "| kernel | target | warp instructions | registers | shared memory | asked for |"
            " written | shared reads, writes | operands by descriptor | conflicts | largest error |"
        ),
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        asked = sum(each["read"] for each in row["buffers"].values())
        lines.append(
            f"| `{row['kernel']}` | {row['target']} | {row['instructions']:,} | {row['registers']}"
            f" | {amount(row['shared_bytes'])} | {amount(asked)} |"
            f" {amount(row['buffers']['d']['written'])} | {amount(row['shared_bytes_accessed'])} |"
            f" {amount(row['operand_bytes']) if row['operand_bytes'] else ''} |"
            f" {row['shared_conflicts']:,} of {row['shared_wavefronts']:,} wavefronts |"
            f" {row['largest_error']:.3f} |"
        )
    return lines


def report():
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(
        text.split(BEGIN)[0] + "\n".join([BEGIN, *tables(rows), END]) + text.split(END)[1],
        encoding="utf-8",
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=("count", "report"), default="count")
    parser.add_argument(
        "--size",
        type=int,
        default=2048,
        help="m = n = k, a multiple of 256 (default 2048, the walk-through's)",
    )
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    if args.command == "count":
        if args.size % STEP_K:
            parser.error(f"--size={args.size} must be a multiple of {STEP_K}")
        rows = [count_case(*case, args.size) for case in CASES]
        print("\n".join(tables(rows)))
        if args.no_record:
            return
        with open(RESULTS, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    report()


if __name__ == "__main__":
    main()
