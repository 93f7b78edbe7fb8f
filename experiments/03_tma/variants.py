"""The two Hopper kernels with other ways of copying their weights. Everything else is the same,
instruction by instruction.

``VARIANTS[name]`` is a Variant: a KernelDefinition, and whether it reads Marlin's layout or weights
that are relaid for its stages (``Variant.packed``).

``decode`` copies one k16 row at a time (cp.async.bulk), ``wgmma`` the box of a stage (a tensor
copy). Here each kernel also has the other's way, and one bulk copy of a relaid stage. A kernel's
``make`` takes ``load_verbs`` from its module; a variant is the same function with this name bound
to another function. Variants require whole tiles, and groups of at least 16 and at most a stage's
k.
"""

from dataclasses import dataclass, replace
from types import FunctionType

from relayout import relaid

from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.decode import KERNEL as DECODE
from numba_marlin.kernels.decode import kernel as decode
from numba_marlin.kernels.decode import load as decode_load
from numba_marlin.kernels.hopper import load as wgmma_load
from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from numba_marlin.kernels.wgmma import kernel as wgmma
from numba_marlin.kernels.wgmma.config import STAGE_K, STAGE_K16_ROWS
from numba_marlin.layout.tensor_map import TensorMap


def bulk_copy(lang, hinted):
    """Return a copy function (target, source, bytes, barrier, policy). The policy is used only if
    ``hinted``."""
    plain = lang.ptx.cp_async_bulk_g2s
    if hinted:
        return lang.ptx.cp_async_bulk_g2s_hint

    @lang.device
    def copy(target, source, byte_count, barrier, policy):
        plain(target, source, byte_count, barrier)

    return copy


# Ways of copying the weights of one stage, for either kernel: way(lang, rows, columns, hinted) ->
# device function (target, b, k16 row, column, number of the stage, barrier, policy, n).


def bulk_rows(lang, rows, columns, hinted):
    uint32, uint64 = lang.uint32, lang.uint64
    copy, ROWS, ROW = bulk_copy(lang, hinted), rows, 8 * columns

    @lang.device
    def copy_weights(target, b, row, column, unit, barrier, policy, n):
        pitch = uint64(n) * uint64(8)
        source = b + uint64(row) * pitch + uint64(column) * uint64(8)
        for i in range(ROWS):
            copy(target + uint32(ROW * i), source, uint32(ROW), barrier, policy)
            source += pitch

    return copy_weights


def tensor_box(lang, rows, columns, hinted):
    """Always with a cache policy: the kernel that reads weights twice already copies this way."""
    ptx, int32 = lang.ptx, lang.int32

    @lang.device
    def copy_weights(target, b, row, column, unit, barrier, policy, n):
        ptx.cp_async_bulk_tensor_2d_g2s_hint(target, b, int32(column), int32(row), barrier, policy)

    return copy_weights


def relaid_stage(lang, rows, columns, hinted):
    uint32, uint64 = lang.uint32, lang.uint64
    copy, BYTES = bulk_copy(lang, hinted), 8 * rows * columns

    @lang.device
    def copy_weights(target, b, row, column, unit, barrier, policy, n):
        copy(target, b + uint64(unit) * uint64(BYTES), uint32(BYTES), barrier, policy)

    return copy_weights


def decode_loader(way):
    """Return ``decode_load.load_verbs`` with another way of copying weights."""

    def load_verbs(lang, config, ring, schedule):
        if config.ragged or not config.grouped or config.zeros is not None or config.bits != 4:
            raise ValueError(
                f"{config}: variants of decode have no tails, and take groups of symmetric 4-bit"
                " codes only"
            )
        copy = way(lang, config.stage_rows, config.columns, True)
        sizes_of_stage = lang.constants(config)

        @lang.device
        def copy_weights(source, step, stage, sizes):
            copy(
                stage.address,
                source.b,
                step.k_step * sizes_of_stage.stage_rows,
                step.n_tile * sizes_of_stage.columns,
                step.n_tile * sizes.k_steps + step.k_step,
                stage.barrier,
                source.policy,
                sizes.n_packed,
            )

        return decode_load.load_verbs(lang, config, ring, schedule, copy_weights)

    return load_verbs


def wgmma_loader(way):
    """Return ``wgmma_load.load_verbs`` with another way of copying weights."""

    def load_verbs(lang, config, ring):
        if not config.grouped:
            raise ValueError(f"{config}: variants of wgmma take groups only")
        copy_once = way(lang, STAGE_K16_ROWS, config.tile_n, True)
        copy_often = way(lang, STAGE_K16_ROWS, config.tile_n, False)
        sizes_of_tile = lang.constants(config)

        @lang.device
        def copy_weights(filling, b, column, step, policy, sizes):
            target, barrier = filling.address + sizes_of_tile.weights_at, filling.barrier
            k_row = step * STAGE_K16_ROWS
            number = column // sizes_of_tile.tile_n * (sizes.k // STAGE_K) + step
            if sizes.m <= sizes_of_tile.tile_m:
                copy_once(target, b, k_row, column, number, barrier, policy, sizes.n)
            else:
                copy_often(target, b, k_row, column, number, barrier, policy, sizes.n)

        return wgmma_load.load_verbs(lang, config, ring, copy_weights)

    return load_verbs


def with_loader(module, load_verbs):
    """Return the ``make`` of a kernel's module with its ``load_verbs`` replaced."""
    original = module.make
    changed = FunctionType(
        original.__code__,
        {**vars(module), "load_verbs": load_verbs},
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )

    def make(lang, config):
        return changed(lang, config)

    return make


def decode_maps(config, m, n, k, a_stride):
    return {
        "b": (
            "b",
            TensorMap(
                "uint64", (k // 16, n), (8 * n, 8), (config.stage_rows, config.columns), 0, 256
            ),
        )
    }


def wgmma_maps(config, m, n, k, a_stride):
    return {
        name: value
        for name, value in wgmma.tensor_maps(config, m, n, k, a_stride).items()
        if name != "b_map"
    }


def _retyped(parameters, old, new, kind):
    return tuple((new, kind) if name == old else (name, of) for name, of in parameters)


@dataclass(frozen=True)
class Variant:
    """engine: the kernel that it is a variant of; way: how it copies weights; relaid: whether it
    reads weights that are relaid for its stages."""

    engine: str
    way: str
    definition: KernelDefinition
    relaid: bool = False

    def packed(self, config, marlin):
        """Return what parameter b points to. marlin: weights in Marlin's layout [k/16, 2 n] (NumPy
        or torch)."""
        if not self.relaid:
            return marlin
        return (
            relaid(marlin, config.stage_rows, config.columns)
            if self.engine == "decode"
            else relaid(marlin, STAGE_K16_ROWS, config.tile_n)
        )


def _decode(name, way, tensor=False):
    parameters = _retyped(DECODE.parameters, "b", "b", "tensormap") if tensor else DECODE.parameters
    more = {"tensor_maps": decode_maps} if tensor else {}
    return replace(
        DECODE,
        name=name,
        parameters=parameters,
        make=with_loader(decode, decode_loader(way)),
        **more,
    )


def _wgmma(name, way):
    return replace(
        WGMMA,
        name=name,
        parameters=_retyped(WGMMA.parameters, "b_map", "b", "u64"),
        make=with_loader(wgmma, wgmma_loader(way)),
        tensor_maps=wgmma_maps,
    )


VARIANTS = {
    "ampere": Variant("ampere", "cp.async, native", AMPERE),
    "decode": Variant("decode", "bulk rows, native", DECODE),
    "decode_tensor": Variant(
        "decode", "TMA box, native", _decode("decode_tensor", tensor_box, tensor=True)
    ),
    "decode_relaid": Variant(
        "decode", "bulk, relaid", _decode("decode_relaid", relaid_stage), relaid=True
    ),
    "wgmma": Variant("wgmma", "TMA box, native", WGMMA),
    "wgmma_bulk": Variant("wgmma", "bulk rows, native", _wgmma("wgmma_bulk", bulk_rows)),
    "wgmma_relaid": Variant(
        "wgmma", "bulk, relaid", _wgmma("wgmma_relaid", relaid_stage), relaid=True
    ),
}
