"""The kernels of W4A8 under compute-sanitizer: ``wgmma_int8`` and ``wgmma_fp8`` with every tile
that ``choose`` proposes, ``decode_int8`` and ``decode_fp8`` in every arrangement, and the quantiser
of activations. See ``experiments/sanitizer.py``; experiments/02_hopper/README.md says what the
tools can see of kernels like these, README.md what is expected here.

python experiments/23_w4a8/sanitize.py all       # on a GPU, minutes
python experiments/23_w4a8/sanitize.py report    # tables into README.md
"""

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import beside
import sanitizer

from numba_marlin import compiler
from numba_marlin.execution import quantizing
from numba_marlin.execution.binding import activation_operands, bind, weight_operands
from numba_marlin.formats import marlin
from numba_marlin.formats.activations import KINDS
from numba_marlin.formats.floats import float_type
from numba_marlin.kernels.quantize_activations import (
    QUANTIZE,
    WITH_OFFSETS,
    RowTypes,
    definition_of,
)
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.kernels.w4a8 import choose as many
from numba_marlin.kernels.w4a8.config import CONFIGS, WgmmaBytesConfig
from numba_marlin.kernels.w4a8.few_rows import choose as few
from numba_marlin.kernels.w4a8.few_rows.config import DecodeBytesConfig
from numba_marlin.problems import ActivationsProblem
from numba_marlin.quantizers import quantize
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.testing.activations import check_product

hopper = beside.script("02_hopper/sanitize.py")
ROWS = {many: 600, few: 16}  # of which the proposals depend, no launch has so many
SMS = {many: 2, few: 3}  # of the grid: blocks have several tiles, or share them
# n, k, group size, zero points. WHOLE fills tiles and stages. Blocks have more steps than stages.
WHOLE = {
    many: ((512, 512, 128, None), (512, 512, -1, None)),
    few: ((512, 1024, 128, None), (512, 1024, -1, None)),
}
RAGGED = (
    (328, 400, -1, None),
    (264, 416, 32, "integer"),
    (392, 448, 64, None),
    (296, 512, 128, "integer"),
    (376, 432, -1, "integer"),
)
DEEPER = {many: 0, few: 384}  # more k of those
# arrangements that are launched in parts too: with turns and without, of one strip and of two, and
# of sums that are integers
IN_PARTS = ((64, 128, True), (64, 256, False), (128, 256, False))
SUMS_OF_PARTS = 16  # of k, where blocks or warps add up parts: ``check_product``'s depth


@dataclass(frozen=True)
class Product:
    """What ``sanitizer`` asks of a ``problems.Case``, the launch, and whether it is right."""

    config: WgmmaBytesConfig | DecodeBytesConfig
    m: int
    n: int
    k: int
    sms: int

    @property
    def definition(self):
        return kernel_of(self.config)

    @property
    def kernel(self):
        return self.definition.name

    @property
    def group_size(self):
        return 16 * self.config.group_blocks if self.config.grouped else -1

    @property
    def parts(self):
        return getattr(self.config, "parts", 1)

    @property
    def label(self):
        rows, columns = self.definition.about.tile(self.config)
        extras = {
            " in turns": getattr(self.config, "ordered", False),
            f" in {self.parts} parts": self.parts > 1,
            " zero points": self.config.zeros is not None,
            " bias": self.config.bias,
        }
        return (
            f"{self.kernel} {rows}x{columns} m{self.m} n{self.n} k{self.k} g{self.group_size}"
            f" {self.config.dtype}{''.join(name for name, has in extras.items() if has)}"
        )

    def build(self, compiled_by, target):
        return compiler.build(self.definition, self.config, target=target, compiler=compiled_by)

    @cached_property
    def operands(self):
        """x quantised, a weight, and a bias or None."""
        random = np.random.default_rng((self.m, self.n, self.k))
        dtype = float_type(self.config.dtype)
        x = random.standard_normal((self.m, self.k)).astype(dtype)
        weight = quantize(
            random.standard_normal((self.k, self.n)).astype(np.float32),
            group_size=self.group_size,
            symmetric=self.config.zeros is None,
            scale_dtype=self.config.dtype,
        )
        bias = random.standard_normal(self.n).astype(dtype) if self.config.bias else None
        return quantize_rows(x, self.config.activations), weight, bias

    def bound(self, compiled):
        x, weight, bias = self.operands
        packed = marlin.pack(weight)
        return bind(
            self.definition,
            self.config,
            ActivationsProblem.of_quantized(x, packed, bias is not None),
            {**activation_operands(x), **weight_operands(packed), "bias": bias},
            sms=self.sms,
            compiled=compiled,
        )

    def check(self, results):
        """AssertionError for a wrong one: int8 bit for bit where groups come in order, else within
        the bound."""
        in_order = CONFIGS[self.config.activations]().order_of_sums
        own = self.config.order_of_sums
        depth = None if own is not None and own.startswith(in_order) else SUMS_OF_PARTS
        offsets = getattr(self.config, "offsets", False)
        check_product(results["c"], *self.operands, depth, offsets, self.parts)


@dataclass(frozen=True)
class Quantising:
    """As ``Product``, of activations [m, k] to 8 bits."""

    config: RowTypes
    m: int
    k: int

    @property
    def kernel(self):
        return definition_of(self.config).name

    @property
    def label(self):
        groups = "" if self.config.group_size is None else f" g{self.config.group_size}"
        return (
            f"{self.kernel} m{self.m} k{self.k}{groups} {self.config.dtype} to {self.config.kind},"
            f" {self.config.threads} threads"
        )

    def build(self, compiled_by, target):
        definition = definition_of(self.config)
        return compiler.build(definition, self.config, target=target, compiler=compiled_by)

    @cached_property
    def x(self):
        random = np.random.default_rng((self.m, self.k))
        return random.standard_normal((self.m, self.k)).astype(float_type(self.config.dtype))

    def bound(self, compiled):
        found = quantizing.binding(self.config, self.m, self.k, compiled.target, self.x)
        return replace(found, compiled=compiled)

    def check(self, results):
        wanted = quantize_rows(self.x, self.config.kind, self.config.group_size)
        codes, scales = results["codes"].view(np.uint8), results["scales"]
        assert np.array_equal(scales.reshape(wanted.scales.shape), wanted.scales), self.label
        assert np.array_equal(codes, wanted.codes.view(np.uint8)), self.label
        if self.config.offsets:
            assert results["offsets"].tobytes() == wanted.offsets.tobytes(), self.label


def run_case(case, compiled, plant=None):
    """Launch once; AssertionError for a wrong result."""
    results = sanitizer.launched(case.bound(compiled), plant)
    if not plant:
        case.check(results)
    return True


def arrangement_of(config):
    """What is proposed whatever the types and groups."""
    if isinstance(config, DecodeBytesConfig):
        return (config.batch, config.warps_n, config.warps_k)
    tile = config.tile_m, config.tile_n, config.ordered
    return tile if config.parts == 1 else (*tile, "in parts")


def proposed(choose, shapes, kind, **types):
    """-> {arrangement: (n, k, configuration)}, for the first of ``shapes`` that it is proposed
    for."""
    found = {}
    for n, k, group_size, zeros in shapes:
        problem = ActivationsProblem(
            ROWS[choose], n, k, group_size, zeros=zeros, activations=kind, **types
        )
        for config in choose.configurations(problem, hopper.H200):
            found.setdefault(arrangement_of(config), (n, k, config))
    return found


def products(choose, kind):
    """For each arrangement two configurations, in float16 and, with bias, tails, and groups and
    zero points in turns, in bfloat16; each on a tile of rows that is not full and on two."""
    deeper = [(n, k + DEEPER[choose], *types) for n, k, *types in RAGGED]
    first = sorted(KINDS).index(kind)  # so that a tile has other groups in the other type
    for number, (arrangement, whole) in enumerate(proposed(choose, WHOLE[choose], kind).items()):
        if arrangement[-1] == "in parts" and arrangement[:-1] not in IN_PARTS:
            continue
        turn = (number + first) % len(deeper)
        shapes = deeper[turn:] + deeper[:turn]
        ragged = proposed(
            choose, shapes, kind, dtype="bfloat16", scale_dtype="bfloat16", bias=True
        )[arrangement]
        rows = arrangement[0]
        launched = (rows - 3, rows + 2), (1, rows + 5)
        if arrangement[-1] == "in parts":
            launched = (rows + 2,), (rows + 5,)
        for (n, k, config), sizes in zip((whole, ragged), launched):
            yield from (Product(config, m, n, k, SMS[choose]) for m in sizes)


def quantisings():
    """Rows of fewer words than threads and of more; groups; many rows."""
    for kind, dtype, group_size, m, k in (
        ("int8", "float16", None, 3, 1040),
        ("fp8", "bfloat16", None, 3, 1040),
        ("int8", "bfloat16", 128, 2, 384),
        ("fp8", "float16", None, 2, 16640),
        ("int8", "float16", None, 300, 4480),
    ):
        yield Quantising(RowTypes(kind, dtype, group_size).for_rows(m, k), m, k)


def quantising(definition):
    return next(each for each in quantisings() if each.kernel == definition.name)


# ---- planted errors


def without_block_barriers(ptx):
    return hopper.BLOCK_BARRIER.sub("", ptx)


def plants_in(case, copies):
    """Those of every product. copies: how the kernel copies weights."""
    stored = "tensor copies" if copies == "tensor copies" else "stores"
    return (
        ("memcheck", "bias one number too short (loads)", {"short": "bias"}),
        ("memcheck", "scales of x one number too short (loads)", {"short": "a_scales"}),
        (
            "memcheck",
            f"C one row too short ({stored})",
            {"short": "c", "must": stored == "stores"},
        ),
        ("memcheck", f"weights one row too short ({copies})", {"short": "b", "must": False}),
        (
            "racecheck",
            "nobody waits for copies",
            {"edit": hopper.without_waiting_for_copies, "must": False},
        ),
        ("initcheck", "bias never copied (loads)", {"missing": "bias"}),
        ("initcheck", "scales of x never copied (loads)", {"missing": "a_scales"}),
        ("initcheck", f"weights never copied ({copies})", {"missing": "b", "must": False}),
        ("synccheck", "odd threads skip a barrier", {"edit": hopper.half_a_barrier}),
        (
            "synccheck",
            "mbarriers are never initialised",
            {"edit": hopper.without_initialised_barriers, "must": False},
        ),
    )


IN_DECODE = (
    (
        "racecheck",
        "warps that add up through shared memory do not wait for each other",
        {"edit": hopper.without_named_barriers},
    ),
)
# the turns say when, not what: no byte depends on them
IN_TURNS = (
    *(
        (
            tool,
            "warpgroups do not wait for their turns",
            {"edit": hopper.without_named_barriers, "must": False},
        )
        for tool in ("racecheck", "synccheck")
    ),
    (
        "synccheck",
        "one warp of a warpgroup does not commit its wgmma",
        {"edit": hopper.three_warps_commit, "must": False},
    ),
)
IN_COLUMNS = (("initcheck", "scales of columns never copied (loads)", {"missing": "scales"}),)
IN_QUANTISER = (
    ("memcheck", "x one row too short (loads)", {"short": "x"}),
    ("memcheck", "codes one row too short (stores)", {"short": "codes"}),
    (
        "racecheck",
        "warps do not wait for each other's largest number",
        {"edit": without_block_barriers},
    ),
    ("initcheck", "x never copied (loads)", {"missing": "x"}),
    ("synccheck", "odd threads skip a barrier", {"edit": hopper.half_a_barrier}),
)
IN_OFFSETS = (("memcheck", "offsets one row too short (stores)", {"short": "offsets"}),)


def planted_in(choose, kind, group_size, arrangement):
    """A problem with fewer steps than stages, so that a kernel that does not wait still ends."""
    n, k, config = proposed(choose, ((72, 256, group_size, None),), kind, bias=True)[arrangement]
    return Product(config, 5, n, k, SMS[choose])


def plants():
    yield from (
        (case, (*plants_in(case, "tensor copies"), *IN_TURNS))
        for case in (planted_in(many, kind, 64, (64, 128, True)) for kind in KINDS)
    )
    yield planted_in(many, "int8", -1, (32, 128, False)), IN_COLUMNS
    for kind in KINDS:
        case = planted_in(few, kind, 64, (16, 4, 2))
        yield case, (*plants_in(case, "bulk copies"), *IN_DECODE)
    yield quantising(QUANTIZE), IN_QUANTISER
    yield quantising(WITH_OFFSETS), (*IN_QUANTISER, *IN_OFFSETS)


CASES = (
    *(case for choose in (many, few) for kind in KINDS for case in products(choose, kind)),
    *quantisings(),
)
PLANTS = tuple(
    sanitizer.Plant(tool, what, case, **error)
    for case, errors in plants()
    for tool, what, error in errors
)
SUITE = sanitizer.Suite(
    Path(__file__).resolve(),
    CASES,
    PLANTS,
    hopper.by_configuration(CASES),
    ("numba-cuda",),
    hopper.SUITE.more,
    run_case,
)

if __name__ == "__main__":
    sys.exit(sanitizer.main(SUITE))
