"""How fast are the products of a mixture of experts, at batches where its weights are what is read?

    python experiments/26_experts/run.py measure [--m 1,4,16] [--models Mixtral,...] [--sweep]
        [--products gate_up,down,"gate_up silu"] [--again]
    python experiments/26_experts/run.py measure --tiny     # small layers on the PTX machine
    python experiments/26_experts/run.py measure --activations int8 [--tiny]   # eight_bits.py
    python experiments/26_experts/run.py report             # the table into README.md
    python experiments/26_experts/run.py expect             # what is expected; no GPU

``measure`` needs a Hopper GPU and torch. In each cell, in the same interleaved rounds (CUDA graphs;
every launch has another routing, so that the weights of its experts are mostly not in L2): ``moe``
and, from 8 rows per expert on, ``moe_wgmma``, one launch of ``nm.moe_matmul`` each; ``loop``, our
dense kernels expert by expert, with a gather and a scatter each, as many launches as experts are
touched (which the host knows here); ``grouped``, ``torch._grouped_mm`` in bf16, and ``humming``
(PyPI: humming-kernels, INT4), on rows that are sorted already (neither gather nor scatter nor sum).
The second product, "down", has ``combine`` in ours, two launches that are timed together; the
others leave rows, and ``grouped + sum`` and ``humming + sum`` are what a user makes of theirs, with
torch: a gather into the order of tokens, and a batched product with the weights. "gate_up silu" has
the activation in the launch, and no peers. Our results are checked before anything is timed: the
same bits twice, some tokens against the dense kernels, all against the other kernel. With --sweep
other configurations run beside. A cell that is there, of the same sources, is skipped unless
--again. Rows are appended to results.jsonl (in OUT, or here); the newest of a cell counts. Bytes
are of the experts that are touched, on average; "expected" is modelled (``layers.expected_us``).
"""

import argparse
import math
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

import eight_bits
from entrants import (
    MOST_ROWS,
    PEERS,
    SUMMED,
    cell_of,
    check,
    launch_moe,
    launch_of_peer,
    launch_sorted_rows,
    launch_summed,
    random_experts,
    takes_part,
)
from layers import (
    MODELS,
    PRODUCTS,
    TINY,
    cells,
    expected_touched,
    expected_us,
    expert_bytes,
    rows_per_expert,
)

from numba_marlin.bench import rows
from numba_marlin.bench.tables import markdown, origin, replace_between

RESULTS = HERE / "results.jsonl"
OUT = Path(os.environ.get("OUT", HERE)) / "results.jsonl"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)
OURS = ("moe", "moe_wgmma")
ENTRANTS = (*OURS, *PEERS, *SUMMED)
LEAST_ROWS = 8  # of an expert, for moe_wgmma
# beside the chosen one: batch, warps_n, warps_k, stage_k, stages, resident, blocks_per_sm, whole
SWEEP = (
    (8, 4, 2, 128, 5, 2, 1, False),
    (8, 4, 2, 128, 5, 2, 2, False),
    (8, 4, 2, 256, 5, 1, 1, False),
    (8, 2, 4, 256, 9, 1, 1, False),
    (8, 2, 8, 512, 4, 1, 1, False),
    (8, 8, 1, 128, 6, 1, 1, False),
    (8, 1, 8, 256, 11, 1, 1, True),
    (16, 4, 2, 128, 9, 1, 1, False),
    (16, 4, 2, 256, 4, 1, 1, False),
    (16, 8, 1, 256, 3, 1, 1, False),
    (24, 4, 2, 128, 7, 1, 1, False),
    (32, 2, 4, 128, 6, 1, 1, False),
    (32, 8, 1, 128, 4, 1, 1, False),
)
# the same of moe_wgmma: tile_m, tile_n, split
WGMMA_SWEEP = (
    (48, 256, True),
    (64, 256, True),
    (96, 256, True),
    (128, 256, True),
    (128, 256, False),
    (128, 128, True),
    (192, 128, True),
    (192, 128, False),
)


def configurations(problem, sweep):
    """{label: configuration}; "moe" and "moe_wgmma" are the chosen ones."""
    from numba_marlin.hardware.devices import device
    from numba_marlin.heuristics import default_config
    from numba_marlin.kernels.language.definition import TooMuchSharedMemory
    from numba_marlin.kernels.registry import find_kernel

    many = rows_per_expert(problem) >= LEAST_ROWS
    found = {
        name: default_config(name, problem, device("H200"))
        for name in (OURS if many else OURS[:1])
        if not find_kernel(name).takes.refusals(problem)
    }
    if "moe_wgmma" in found:
        wgmma = found["moe_wgmma"]
        for tile_m, tile_n, split in WGMMA_SWEEP if sweep else ():
            changes = {"tile_m": tile_m, "tile_n": tile_n, "split": split}
            for stages in range(8, 1, -1):
                try:
                    config = replace(wgmma, **changes, stages=stages)
                    break
                except TooMuchSharedMemory:
                    continue
            if config != wgmma:
                found[f"moe_wgmma {tile_m},{tile_n},{int(split)}"] = config
    first = found["moe"]
    names = ("batch", "warps_n", "warps_k", "stage_k", "stages", "resident", "blocks_per_sm")
    for *sizes, whole in SWEEP if sweep else ():
        changes = dict(zip(names, sizes), whole=whole)
        ragged = problem.k % changes["stage_k"] or problem.n % (64 * changes["warps_n"])
        try:
            config = replace(first, **changes, ragged=bool(ragged))
        except TooMuchSharedMemory:
            config = replace(first, **{**changes, "stages": changes["stages"] - 1, "ragged": True})
        if config != first and config.batch <= 4 * max(8, rows_per_expert(problem)):
            found["moe " + ",".join(str(int(each)) for each in (*sizes, whole))] = config
    return found


def build(config, target="sm_90a"):
    from numba_marlin import compiler
    from numba_marlin.kernels.registry import kernel_of

    built = compiler.build(kernel_of(config), config, target, compiler.COMPILERS[0])
    return built.resources.registers, built.resources.spill_loads


def compile_all(found, sweep, processes):
    """Every configuration, and what ``loop`` may need, to the disk cache, on all cores."""
    from numba_marlin.api.warmup import warmup
    from numba_marlin.problems import WeightProblem

    configs = {c for _, _, problem in found for c in configurations(problem, sweep).values()}
    start = time.perf_counter()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        spilled = [c for c, (_, loads) in zip(configs, pool.map(build, configs)) if loads]
    print(f"{len(configs)} configurations compiled in {time.perf_counter() - start:.0f} s")
    for config in spilled:
        print("  spills:", config)
    dense = {
        f"{problem.k} x {problem.n} {problem.codes}": WeightProblem(
            1,
            problem.n,
            problem.k,
            problem.group_size,
            scale_dtype=problem.scale_dtype,
            codes=problem.codes,
        )
        for _, _, problem in found
    }
    print(warmup(dense, m=range(1, MOST_ROWS + 1), processes=processes), flush=True)


# ---- measuring


def row_of(name, config, model, product, problem, touched, us, environment):
    from numba_marlin.bench.measure import timed

    return {
        "kernel": name if name in SUMMED else name.partition(" ")[0],
        "config": None if config is None else asdict(config),
        "kind": "measured",
        **asdict(problem),
        "model": model,
        "product": product,
        "touched": touched,
        "touched_bytes": round(touched * expert_bytes(problem)),
        **timed(us),
        **environment,
    }


def measure(args):
    if args.activations:
        return eight_bits.measure(sys.modules[__name__], args)
    if args.tiny:
        return tiny(args)
    import torch

    from numba_marlin.bench.environment import describe
    from numba_marlin.bench.timing import GraphTimer, interleave, torch_on_gpu
    from numba_marlin.execution.scratch import release_workspaces

    torch_on_gpu()
    torch.set_grad_enabled(False)
    models = [each for each in MODELS if any(name in each.name for name in args.models)]
    environment = describe(torch.cuda.get_device_name())
    found = list(cells(models, args.m, args.products))
    if not args.again:
        there = kernels_of_cells({OUT, RESULTS}, environment.get("sources"))
        found = [each for each in found if not is_there(there, *each)]
    print(f"{len(found)} cells to measure", flush=True)
    compile_all(found, args.sweep, args.processes)
    generator = torch.Generator("cuda").manual_seed(0)
    start, held, experts = time.perf_counter(), None, None
    with rows.Recorder(OUT) as out:
        for model, product, problem in found:
            if time.perf_counter() - start > args.seconds:
                print(f"stopped after {args.seconds} s", flush=True)
                return
            if held != (model, problem.n, problem.k):
                held, experts = (model, problem.n, problem.k), None
                torch.cuda.empty_cache()
                experts = random_experts(problem, "cuda", generator)
            cell = cell_of(problem, experts, "cuda", generator)
            launches, configs, other = {}, configurations(problem, args.sweep), None
            for label, config in configs.items():
                launches[label] = launch_moe(cell, config)
                _, result = check(cell, launches[label], other)
                other = result if other is None else other
            for label in (*PEERS, *SUMMED):
                if label not in args.entrants or not takes_part(label, cell, launches):
                    continue
                try:
                    launches[label] = launch_of_peer(label, cell, launches)
                except Exception as error:  # of another project's: the cell goes on without it
                    if label == "loop":
                        raise
                    print(f"  {label}: {type(error).__name__}: {error}", flush=True)
            least = max(20 if problem.m <= 64 else 4, len(cell.routings))
            timers = {}
            for label, launch in launches.items():
                try:
                    timers[label] = GraphTimer(launch, 1000.0, least)
                except Exception as error:
                    if label not in (*PEERS, *SUMMED) or label == "loop":
                        raise
                    print(f"  {label}: {type(error).__name__}: {error}", flush=True)
            times = interleave(timers, args.rounds)
            for label, us in times.items():
                out.write(
                    row_of(
                        label,
                        configs.get(label),
                        model.name,
                        product,
                        problem,
                        cell.touched,
                        us,
                        environment,
                    )
                )
            timers.clear()
            launches.clear()
            torch.cuda.synchronize()
            release_workspaces()  # each graph had its own
            said = {name: sorted(us)[len(us) // 2] for name, us in times.items()}
            best = min(said[name] for name in OURS if name in said)
            rate = cell.touched * expert_bytes(problem) / best / 1e6
            print(
                f"{model.name} {product} m={problem.m}: {cell.touched:.1f} experts,"
                f" {rate:.2f} TB/s, {problem.flops / best * 1e-6:.0f} TFLOP/s; us",
                {name: round(us, 1) for name, us in said.items()},
                flush=True,
            )


def kernels_of_cells(paths, sources):
    """{(model, product, m): kernels} of the rows of these sources."""
    found = {}
    for path in paths:
        for row in rows.read(path) if path.exists() else ():
            if row.get("sources") == sources:
                key = row["model"], row["product"], row["m"]
                found.setdefault(key, set()).add(row["kernel"])
    return found


def is_there(there, model, product, problem):
    wanted = {label.partition(" ")[0] for label in configurations(problem, False)}
    return wanted <= there.get((model.name, product, problem.m), set())


def tiny(args):
    """Every entrant that runs without a GPU, checked."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for model, product, problem in cells(TINY, [1, 27], (*PRODUCTS, "gate_up silu")):
        if problem.activation is not None and problem.n % 128:
            continue  # no launch activates them
        experts = random_experts(problem, "cpu", generator)
        cell = cell_of(problem, experts, "cpu", generator)
        errors, other = {}, None
        for name, config in configurations(problem, False).items():
            errors[name], result = check(cell, launch_moe(cell, config), other)
            other = result if other is None else other
        if problem.combine:
            rows = replace(problem, combine=False)
            config = configurations(rows, False)["moe"]
            errors["rows + sum"], _ = check(
                cell, launch_summed(cell, launch_sorted_rows(cell, config)), other
            )
        said = ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
        print(f"{model.name} {product} m={problem.m}: ok, of the largest number {said}", flush=True)


# ---- the page


def table(found):
    """A line for each cell: the best of what was measured of each entrant; rates are those of the
    faster of ours."""
    best = {}
    for row in found:
        key = row["model"], row["product"], row["m"]
        of_cell = best.setdefault(key, {})
        old = of_cell.get(row["kernel"])
        if old is None or row["us"] < old["us"]:
            of_cell[row["kernel"]] = row
    lines = []
    for model, product, problem in cells(MODELS, TOKENS):
        cell = best.get((model.name, product, problem.m), {})
        if "moe" not in cell:
            continue
        ours = min((cell[name] for name in OURS if name in cell), key=lambda row: row["us"])
        us = {name: f"{cell[name]['us']:.1f}" if name in cell else "" for name in ENTRANTS}
        lines.append(
            [
                f"{model.name} {product}",
                str(problem.m),
                f"{ours['touched']:.1f}",
                *us.values(),
                f"{ours['touched_bytes'] / ours['us'] * 1e-3:.0f}",
                f"{problem.flops / ours['us'] * 1e-6:.0f}",
                f"{expected_us(problem, ours['touched']):.1f}",
            ]
        )
    header = ["product", "tokens", "experts touched", *(f"{name}: us" for name in ENTRANTS)]
    return markdown([*header, "GB/s", "TFLOP/s", "expected: us (modelled)"], lines)


def report(args):
    found = list(rows.newest(rows.read(RESULTS)).values())
    replace_between(HERE / "README.md", MARKERS, f"{table(found)}\n\n{origin(found)}")
    replace_between(HERE / "README.md", eight_bits.MARKERS, eight_bits.table(found))


def expect(args):
    for model, product, problem in cells(MODELS, args.m):
        touched = expected_touched(problem)
        print(
            f"{expected_us(problem):9.1f} us  {model.name} {product}, {problem.m} tokens:"
            f" {touched:.1f} experts of {expert_bytes(problem) / 1e6:.2f} MB"
        )


def numbers(text):
    return [int(each) for each in text.split(",")]


def names(text):
    return text.split(",")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("measure", "report", "expect"))
    parser.add_argument("--m", type=numbers, default=list(TOKENS), help="tokens")
    parser.add_argument("--models", type=names, default=[each.name for each in MODELS])
    parser.add_argument("--entrants", type=names, default=list(ENTRANTS))
    parser.add_argument("--products", type=names, default=list(PRODUCTS))
    parser.add_argument("--again", action="store_true", help="cells that are there too")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no cell after these")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that compile")
    parser.add_argument("--sweep", action="store_true", help="other configurations of moe too")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--activations", choices=eight_bits.KINDS, help="x in 8 bits")
    args = parser.parse_args(arguments)
    {"measure": measure, "report": report, "expect": expect}[args.what](args)


if __name__ == "__main__":
    main()
