"""How fast are the products of a mixture of experts, at batches where its weights are what is read?

    python experiments/26_experts/run.py measure [--m 1,4,16] [--models Mixtral,...] [--sweep]
    python experiments/26_experts/run.py measure --tiny     # small layers on the PTX machine
    python experiments/26_experts/run.py report             # the table into README.md
    python experiments/26_experts/run.py expect             # what is expected; no GPU

``measure`` needs a Hopper GPU and torch. In each cell, in the same interleaved rounds (CUDA graphs;
every launch has another routing, so that the weights of its experts are mostly not in L2): ``moe``,
``nm.moe_matmul``, one launch; ``loop``, our dense kernels expert by expert, with a gather and a
scatter each, as many launches as experts are touched (which the host knows here); ``grouped``,
``torch._grouped_mm`` in bf16 on rows that are sorted already (neither gather nor scatter nor sum).
The second product, "down", has ``combine`` in ``moe``; the others leave rows. Results of ``moe``
are checked before anything is timed: against ``loop``, and for the same bits twice. With --sweep
other configurations of ``moe`` run beside it. Rows are appended to results.jsonl (in OUT, or here)
as soon as they are measured; the newest of a cell counts. Bytes are those of the experts that are
touched, on average over the routings; "expected" is modelled: a launch of 6 us, and these bytes at
4.2 TB/s.
"""

import argparse
import math
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from numba_marlin.bench import rows
from numba_marlin.bench.tables import markdown, origin, replace_between
from numba_marlin.problems.experts import ExpertsProblem

RESULTS = HERE / "results.jsonl"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)
ENTRANTS = ("moe", "loop", "grouped")
LAUNCH_US, READ_BYTES_US = 6.0, 4.2e6
COLD_BYTES = 150e6  # that the launches of a lap of routings read: three times an H200's L2
# experts touched, and rows of one, above which ``loop`` would take too long to build
MOST_LOOPED, MOST_ROWS = 64, 32
DIFFERENCE = 4e-3  # of the largest number, between two fp16 products of other orders of sums


@dataclass(frozen=True)
class Model:
    """Of a layer: experts, those of a token, sizes, rows that share a scale."""

    name: str
    experts: int
    top_k: int
    hidden: int
    width: int  # of an expert's hidden layer
    group_size: int = 128

    def products(self, m):
        """{name: ExpertsProblem}"""
        k, h = self.hidden, self.width
        common = {"experts": self.experts, "top_k": self.top_k, "group_size": self.group_size}
        return {
            "gate_up": ExpertsProblem(m=m, n=2 * h, k=k, **common),
            "down": ExpertsProblem(m=m, n=k, k=h, x_of_pairs=True, combine=True, **common),
        }


MODELS = (
    Model("Mixtral 8x7B", 8, 2, 4096, 14336),
    Model("Qwen3-30B-A3B", 128, 8, 2048, 768),
    Model("gpt-oss-120b", 128, 4, 2880, 2880, 32),
    Model("DeepSeek-V3", 256, 8, 7168, 2048),
    Model("Kimi K2", 384, 8, 7168, 2048),
)
TINY = (Model("tiny", 6, 2, 128, 64, 32), Model("tiny, wide", 9, 3, 64, 96, 32))
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


def expert_bytes(problem):
    """Of one expert's codes and scales."""
    groups = 1 if problem.group_size == -1 else problem.k // problem.group_size
    return problem.n * (problem.k // 2 + 2 * groups)


def expected_touched(problem):
    """Experts that a token of m goes to, if each chooses at random."""
    return problem.experts * (1 - (1 - problem.top_k / problem.experts) ** problem.m)


def expected_us(problem, touched=None):
    touched = expected_touched(problem) if touched is None else touched
    return LAUNCH_US + touched * expert_bytes(problem) / READ_BYTES_US


def cells(models, batches):
    for model in models:
        for name in ("gate_up", "down"):
            for m in batches:
                yield model, name, model.products(m)[name]


def configurations(problem, sweep):
    """{label: MoeConfig}; "moe" is the chosen one."""
    from numba_marlin.execution.experts import chosen
    from numba_marlin.kernels.language.definition import TooMuchSharedMemory

    first = chosen(problem)
    found = {"moe": first}
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


def rows_per_expert(problem):
    return problem.m * problem.top_k / problem.experts


def build(config, target="sm_90a"):
    from numba_marlin import compiler
    from numba_marlin.kernels.moe import MOE

    built = compiler.build(MOE, config, target, compiler.COMPILERS[0])
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
        f"{problem.k} x {problem.n}": WeightProblem(1, problem.n, problem.k, problem.group_size)
        for _, _, problem in found
    }
    print(warmup(dense, m=range(1, MOST_ROWS + 1), processes=processes), flush=True)


# ---- operands on a device


def random_experts(problem, device, generator):
    """A PackedExperts of torch tensors on the device: random codes, scales near 2**-6."""
    import torch

    from numba_marlin.formats.experts import PackedExperts
    from numba_marlin.formats.types import PackedWeight

    n_packed = -(-problem.n // 64) * 64
    groups = 1 if problem.group_size == -1 else problem.k // problem.group_size
    shape = (problem.experts, problem.k // 16, 2 * n_packed)
    words = torch.randint(
        -(2**31), 2**31, shape, dtype=torch.int32, device=device, generator=generator
    )
    scales = (
        torch.rand((problem.experts, groups, n_packed), device=device, generator=generator)
        .add_(0.5)
        .mul_(2**-6)
        .half()
    )
    facts = {
        "layout": "marlin",
        "bits": 4,
        "group_size": problem.group_size if groups > 1 else -1,
        "k": problem.k,
        "n": problem.n,
    }
    arrays = {"qweight": words, "scales": scales}
    return PackedExperts(arrays, PackedWeight, (facts,) * problem.experts)


def random_routings(problem, count, device, generator):
    """As many, every token to other experts, each expert as likely."""
    import torch

    from numba_marlin.formats.routing import Routing

    found = []
    for _ in range(count):
        shape = (problem.m, problem.experts)
        ids = torch.rand(shape, device=device, generator=generator).argsort(dim=1)
        ids = ids[:, : problem.top_k].contiguous()
        weights = torch.rand(ids.shape, device=device, generator=generator)
        found.append(Routing.of(ids, weights, problem.experts))
    return found


@dataclass(eq=False)
class Cell:
    """The operands of a cell."""

    problem: ExpertsProblem
    experts: object
    x: object
    routings: list
    touched: float  # experts, on average
    dense: list  # packed weights of the experts, views

    @property
    def looped(self):
        """Whether ``loop`` is an entrant."""
        return self.touched <= MOST_LOOPED and rows_per_expert(self.problem) <= MOST_ROWS / 2

    def routing(self, index):
        return self.routings[index % len(self.routings)]


def cell_of(problem, experts, device, generator):
    import torch

    shape = (problem.m, problem.top_k) if problem.x_of_pairs else (problem.m,)
    x = torch.randn((*shape, problem.k), device=device, generator=generator).half()
    read = expected_touched(problem) * expert_bytes(problem)
    count = min(32, max(3, math.ceil(COLD_BYTES / read)))
    if read > COLD_BYTES:
        count = 2
    routings = random_routings(problem, count, device, generator)
    touched = [int((each.offsets.diff() > 0).sum()) for each in routings]
    return Cell(problem, experts, x, routings, sum(touched) / len(touched), [])


def launch_moe(cell, config):
    import numba_marlin as nm

    def launch(index):
        return nm.moe_matmul(
            cell.x,
            cell.experts,
            cell.routing(index),
            combine=cell.problem.combine,
            config=config,
            backend="auto" if cell.x.is_cuda else "emulator",
        )

    return launch


def launch_loop(cell):
    """Our dense kernels; offsets are known to the host, pairs are sorted on the device."""
    import numba_marlin as nm

    problem = cell.problem
    if not cell.dense:
        cell.dense = list(cell.experts)
    plans = []
    for routing in cell.routings:
        offsets = routing.offsets.tolist()
        pairs = routing.pairs.long()
        plan = []
        for expert, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:])):
            if begin < end:
                taken = pairs[begin:end]
                plan.append(
                    (expert, taken, taken if problem.x_of_pairs else taken // problem.top_k)
                )
        plans.append(plan)
    rows_of_x = cell.x.reshape(-1, problem.k)
    backend = "auto" if cell.x.is_cuda else "emulator"

    def launch(index):
        out = cell.x.new_empty((problem.pairs, problem.n))
        for expert, pairs, taken in plans[index % len(plans)]:
            product = nm.matmul(rows_of_x.index_select(0, taken), cell.dense[expert], backend)
            out.index_copy_(0, pairs, product)
        return out

    return launch


def launch_grouped(cell):
    import torch

    problem = cell.problem
    shape = (problem.experts, problem.n, problem.k)
    weights = torch.empty(shape, dtype=torch.bfloat16, device=cell.x.device).normal_()
    weights = weights.transpose(1, 2)
    gathered = []
    for routing in cell.routings:
        pairs = routing.pairs.long()
        taken = pairs if problem.x_of_pairs else pairs // problem.top_k
        x = cell.x.reshape(-1, problem.k).index_select(0, taken).bfloat16()
        gathered.append((x, routing.offsets[1:].contiguous()))

    def launch(index):
        x, offsets = gathered[index % len(gathered)]
        return torch._grouped_mm(x, weights, offs=offsets)

    return launch


def check(cell, launch):
    """ValueError unless a launch gives the same bits twice, near those of the loop."""
    import torch

    first, again = launch(0), launch(0)
    what = cell.problem.in_words()
    if not torch.equal(first, again):
        raise ValueError(f"{what}: two launches differ")
    wanted = launch_loop(cell)(0).reshape(cell.problem.m, cell.problem.top_k, -1).float()
    if cell.problem.combine:
        wanted = (cell.routing(0).weights[:, :, None] * wanted).sum(dim=1)
    error = ((first.float() - wanted).abs().max() / wanted.abs().max()).item()
    if not error < DIFFERENCE:
        raise ValueError(f"{what}: error {error:.3g} of the largest number")
    return error


# ---- measuring


def row_of(name, config, model, product, problem, touched, us, environment):
    from numba_marlin.bench.measure import timed

    return {
        "kernel": name.partition(" ")[0],
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
    if args.tiny:
        return tiny(args)
    import torch

    from numba_marlin.bench.environment import describe
    from numba_marlin.bench.timing import GraphTimer, interleave, torch_on_gpu
    from numba_marlin.execution.scratch import release_workspaces

    torch_on_gpu()
    torch.set_grad_enabled(False)
    models = [each for each in MODELS if any(name in each.name for name in args.models)]
    compile_all(list(cells(models, args.m)), args.sweep, args.processes)
    generator = torch.Generator("cuda").manual_seed(0)
    environment = describe(torch.cuda.get_device_name())
    out_path = Path(os.environ.get("OUT", HERE)) / "results.jsonl"
    start, held, experts = time.perf_counter(), None, None
    with rows.Recorder(out_path) as out:
        for model, product, problem in cells(models, args.m):
            if time.perf_counter() - start > args.seconds:
                print(f"stopped after {args.seconds} s", flush=True)
                return
            if held != (model, product):
                held, experts = (model, product), None
                torch.cuda.empty_cache()
                experts = random_experts(problem, "cuda", generator)
            cell = cell_of(problem, experts, "cuda", generator)
            launches, configs = {}, configurations(problem, args.sweep)
            for label, config in configs.items():
                launches[label] = launch_moe(cell, config)
                if cell.looped:
                    check(cell, launches[label])
            if "loop" in args.entrants and cell.looped:
                launches["loop"] = launch_loop(cell)
            if "grouped" in args.entrants and hasattr(torch, "_grouped_mm"):
                launches["grouped"] = launch_grouped(cell)
            least = max(20 if problem.m <= 64 else 4, len(cell.routings))
            timers = {}
            for label, launch in launches.items():
                try:
                    timers[label] = GraphTimer(launch, 1000.0, least)
                except RuntimeError as error:
                    if label != "grouped":
                        raise
                    print(f"  grouped: {error}", flush=True)
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
            rate = cell.touched * expert_bytes(problem) / said["moe"] / 1e6
            print(
                f"{model.name} {product} m={problem.m}: {cell.touched:.1f} experts,"
                f" {rate:.2f} TB/s; us",
                {name: round(us, 1) for name, us in said.items()},
                flush=True,
            )


def tiny(args):
    """Every entrant that runs without a GPU, checked."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for model, product, problem in cells(TINY, [1, 5]):
        experts = random_experts(problem, "cpu", generator)
        cell = cell_of(problem, experts, "cpu", generator)
        for config in configurations(problem, False).values():
            error = check(cell, launch_moe(cell, config))
        print(f"{model.name} {product} m={problem.m}: ok, {error:.2g} of the largest number")


# ---- the page


def table(found):
    """A line for each cell: the best of what was measured of each entrant."""
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
        ours = cell["moe"]
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
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no cell after these")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that compile")
    parser.add_argument("--sweep", action="store_true", help="other configurations of moe too")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(arguments)
    {"measure": measure, "report": report, "expect": expect}[args.what](args)


if __name__ == "__main__":
    main()
