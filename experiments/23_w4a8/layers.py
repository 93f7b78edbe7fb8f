"""What experiment 23 measures: its cells, its contenders, and what is expected of them."""

SHAPES = ((8192, 8192), (8192, 57344), (28672, 8192), (4096, 4096))  # k, n
BATCHES = (1, 8, 16, 64, 256, 1024, 2048, 4096)
GROUPS = (128, -1)
KINDS = ("int8", "fp8")
ENTRANTS = ("cublas", "w4a16", *KINDS, *(f"quantize_{kind}" for kind in KINDS))
HUMMING = {kind: f"humming_{kind}" for kind in KINDS}
# norm-wise, with a scale per row on normal x; an index that is wrong: 1
LARGEST_ERROR = {"int8": 0.02, "fp8": 0.05}
LAUNCH_US = 2.5


def cells(batches=BATCHES, shapes=SHAPES, groups=GROUPS):
    """The problem with 16-bit activations of every cell, weight by weight."""
    from numba_marlin.problems import WeightProblem

    for k, n in shapes:
        for group_size in groups:
            for m in batches:
                yield WeightProblem(m, n, k, group_size)


def quantized(problem, kind):
    """The same problem with activations in 8 bits."""
    from numba_marlin.problems import ActivationsProblem

    return ActivationsProblem(problem.m, problem.n, problem.k, problem.group_size, activations=kind)


def expected_us(problem, device):
    """Of a product in 8 bits and of the quantisation of x, modelled."""
    from numba_marlin.heuristics import rank

    product = rank(problem, device)[0].figures["predicted_us"]
    moved = 3 * problem.m * problem.k  # 2 bytes read, 1 written
    return product + LAUNCH_US + moved / device.bandwidth_bytes * 1e6
