"""The layers of experiment 26, and what is expected of them. Pure."""

from dataclasses import dataclass

from numba_marlin.hardware.devices import device
from numba_marlin.heuristics import default_config
from numba_marlin.kernels.experts.moe_wgmma.choose import row_blocks
from numba_marlin.problems.experts import ExpertsProblem

LAUNCH_US, READ_BYTES_US, FLOPS_US = 6.0, 4.2e6, 650e6
WORK_LEADS_FROM = 32  # rows per expert


@dataclass(frozen=True)
class Model:
    """Of a layer: experts, those of a token, sizes, rows that share a scale."""

    name: str
    experts: int
    top_k: int
    hidden: int
    width: int  # of an expert's hidden layer
    group_size: int = 128
    codes: str = "integer"  # or "e2m1": MXFP4

    def products(self, m):
        """{name: ExpertsProblem}"""
        k, h = self.hidden, self.width
        common = {"experts": self.experts, "top_k": self.top_k, "group_size": self.group_size}
        if self.codes != "integer":
            common |= {"codes": self.codes, "scale_dtype": "e5m3"}
        return {
            "gate_up": ExpertsProblem(m=m, n=2 * h, k=k, **common),
            "down": ExpertsProblem(m=m, n=k, k=h, x_of_pairs=True, combine=True, **common),
            "gate_up silu": ExpertsProblem(m=m, n=2 * h, k=k, activation="silu", **common),
        }


MODELS = (
    Model("Mixtral 8x7B", 8, 2, 4096, 14336),
    Model("Qwen3-30B-A3B", 128, 8, 2048, 768),
    Model("gpt-oss-120b", 128, 4, 2880, 2880, 32),
    Model("gpt-oss-120b, MXFP4", 128, 4, 2880, 2880, 32, "e2m1"),
    Model("DeepSeek-V3", 256, 8, 7168, 2048),
    Model("Kimi K2", 384, 8, 7168, 2048),
)
TINY = (Model("tiny", 6, 2, 128, 128, 32), Model("tiny, MXFP4", 9, 3, 64, 96, 32, "e2m1"))


def expert_bytes(problem):
    """Of one expert's codes and scales."""
    groups = 1 if problem.group_size == -1 else problem.k // problem.group_size
    scale_bytes = 2 if problem.codes == "integer" else 1
    return problem.n * (problem.k // 2 + scale_bytes * groups)


def expected_touched(problem):
    """Experts that a token of m goes to, if each chooses at random."""
    return problem.experts * (1 - (1 - problem.top_k / problem.experts) ** problem.m)


PASS_US = 2.5  # of a second launch, of which dependent launch hides a part


def expected_us(problem, touched=None):
    """Modelled: a launch of 6 us, and the bytes of the experts that are touched at 4.2 TB/s, or,
    from 32 rows per expert on, if that is longer, the products of whole tiles at 650 TFLOP/s, which
    the dense kernel reaches on a layer's shapes; with ``combine`` a second launch besides, and
    every pair's row in fp32, written and read."""
    touched = expected_touched(problem) if touched is None else touched
    read, work, sums = touched * expert_bytes(problem) / READ_BYTES_US, 0.0, 0.0
    if problem.combine:
        sums = PASS_US + 2 * 4 * problem.pairs * problem.n / READ_BYTES_US
    rows = rows_per_expert(problem)
    if rows >= WORK_LEADS_FROM:
        tile_m = default_config("moe_wgmma", problem, device("H200")).tile_m
        padded = problem.experts * row_blocks(rows, tile_m) * tile_m
        work = 2 * padded * problem.n * problem.k / FLOPS_US
    return LAUNCH_US + max(read, work) + sums


PRODUCTS = ("gate_up", "down")


def cells(models, batches, products=PRODUCTS):
    for model in models:
        for name in products:
            for m in batches:
                yield model, name, model.products(m)[name]


def rows_per_expert(problem):
    return problem.m * problem.top_k / problem.experts
