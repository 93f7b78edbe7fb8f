"""What CUTLASS's examples of the CuTe DSL are given, and what they must give."""

import operator
from unittest import mock

import cuda.bindings.driver as cuda
import cutlass
import ml_dtypes
import numpy as np
from cute_kit import run, tensor
from on_cutlass import example
from recording import bound, poisoned

CASES: list = []  # (name, targets, function that fills a Case)
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
F16, F32 = np.float16, np.float32
STREAM = cuda.CUstream(0)
CLUSTERS = 3  # that persistent kernels have room for


def case(name: str, targets=("sm_90",)):
    def register(function):
        CASES.append((name, targets, function))
        return function

    return register


def normal(*shape, dtype=F32, seed=34):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def matrix(case, rows: int, columns: int, batch: int, dtype, major: str, new: bool = False):
    """(array, its view [rows, columns, batch], the tensor); ``major``: "row" or "column" are
    neighbours in memory along columns, or along rows."""
    shape = (batch, rows, columns) if major == "row" else (batch, columns, rows)
    seed = 34 + 100 * rows + columns
    array = poisoned(shape, dtype) if new else normal(*shape, dtype=dtype, seed=seed)
    order = (1, 2, 0) if major == "row" else (2, 1, 0)
    view = array.transpose(order)
    leading = 1 if major == "row" else 0
    return array, view, tensor(case, array, view, dynamic=leading)


def product(a, b):
    """a [m, k, l] times b [n, k, l], transposed: [m, n, l]; and of the magnitudes."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (
        np.einsum("mkl,nkl->mnl", a, b),
        np.einsum("mkl,nkl->mnl", np.abs(a), np.abs(b)),
    )


def eight_bits(a, b):
    """How far sums of products of e4m3 by wgmma may be from the exact ones: [m, n, l]."""
    from numba_marlin.reference.small_sums import error_bound

    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.stack([error_bound(x, y) for x, y in zip(a.T.swapaxes(1, 2), b.T.swapaxes(1, 2))], -1)


def expect(case, array, view, value, allowed) -> None:
    """``value`` and ``allowed`` are of the view's shape; memory holds the array's."""
    order = order_of(array, view)
    case.expect(
        array, value.transpose(order), np.broadcast_to(allowed, value.shape).transpose(order)
    )


def order_of(array, view) -> list[int]:
    """The permutation of the view's dimensions that gives the array's."""
    return [view.strides.index(stride) for stride in array.strides]


def add_gemm(path, kernel, ab, out, tile, cluster, majors, size, **others):
    name = path.rpartition("/")[2].removesuffix(".py")
    title = f"{name}: {np.dtype(ab).name} to {np.dtype(out).name}, tile {tile[0]}x{tile[1]}"
    title += f", cluster {cluster[0]}x{cluster[1]}, {majors}"

    @case(title)
    def fill(case):
        m, n, k, batch = size
        a, b = (
            matrix(case, rows, k, batch, ab, "row" if major == "k" else "column")
            for rows, major in zip((m, n), majors)
        )
        c = matrix(case, m, n, batch, out, "row" if majors[2] == "n" else "column", new=True)
        made = getattr(example(path), kernel)(cutlass.Float32, tile, cluster, **others)
        tensors = a[2], b[2], c[2]
        if others:
            run(case, made, *tensors, STREAM, compiled_with=(*tensors, CLUSTERS, STREAM))
        else:
            run(case, made, *tensors, STREAM)
        value, most = product(a[1], b[1])
        more = eight_bits(a[1], b[1]) if np.dtype(ab).itemsize == 1 else 0
        expect(case, c[0], c[1], value, bound(value, out, 0, k, most) + more)


PLAIN = "hopper/kernel/dense_gemm/dense_gemm.py", "HopperWgmmaGemmKernel"
add_gemm(*PLAIN, F16, F16, (128, 128), (1, 1), "kkn", (128, 128, 128, 1))
add_gemm(*PLAIN, F16, F32, (64, 64), (1, 1), "kkn", (128, 64, 128, 2))
add_gemm(*PLAIN, BF16, BF16, (128, 64), (1, 1), "mnn", (128, 64, 128, 1))
add_gemm(*PLAIN, F16, F16, (128, 64), (2, 1), "kkn", (256, 64, 128, 1))
add_gemm(*PLAIN, F16, F16, (64, 64), (1, 2), "kkm", (64, 128, 128, 1))
add_gemm(*PLAIN, E4M3, F16, (128, 64), (1, 1), "kkn", (128, 64, 128, 1))
add_gemm(*PLAIN, F16, F16, (64, 64), (1, 1), "kkn", (72, 56, 80, 1))
PERSISTENT = (
    "hopper/kernel/dense_gemm/dense_gemm_persistent.py",
    "HopperWgmmaGemmPersistentKernel",
)
TURNS = {"swizzle_size": 1, "raster_along_m": True}
add_gemm(*PERSISTENT, F16, F16, (128, 128), (1, 1), "kkn", (256, 256, 128, 1), **TURNS)
add_gemm(*PERSISTENT, F16, F32, (64, 64), (1, 1), "kkn", (256, 128, 64, 1), **TURNS)
add_gemm(*PERSISTENT, BF16, BF16, (128, 64), (2, 1), "kkn", (256, 128, 128, 1), **TURNS)
add_gemm(*PERSISTENT, F16, F16, (64, 64), (1, 1), "mnm", (128, 128, 64, 1), **TURNS)


@case("dense_gemm_fp8_2xacc: float8_e4m3fn to float16, tile 128x64")
def _(case):
    m, n, k = 128, 64, 256
    a, b = matrix(case, m, k, 1, E4M3, "row"), matrix(case, n, k, 1, E4M3, "row")
    d = matrix(case, m, n, 1, F16, "row", new=True)
    scales = np.array([0.5], F32), np.array([0.25], F32)
    module = example("hopper/kernel/dense_gemm/dense_gemm_fp8_2xacc.py")
    made = module.HopperFP8WarpSpecialized2xAccGemmKernel((128, 64), (1, 1), 1, True)
    given = (a[2], b[2], d[2], *(tensor(case, each, dynamic=0) for each in scales))
    run(case, made, *given, STREAM, compiled_with=(*given, CLUSTERS, STREAM))
    value, most = (each * 0.125 for each in product(a[1], b[1]))
    parts = [slice(start, start + 128) for start in range(0, k, 128)]  # of four products each
    more = 0.125 * sum(eight_bits(a[1][:, part], b[1][:, part]) for part in parts)
    expect(case, d[0], d[1], value, bound(value, F16, 0, k, most) + more)


@case("dense_gemm_fp8_gelu_persistent: float8_e4m3fn to float16, tile 128x64")
def _(case):
    from scipy.special import erf

    m, n, k = 128, 128, 128
    a, b = matrix(case, m, k, 1, E4M3, "row"), matrix(case, n, k, 1, E4M3, "row")
    c = matrix(case, m, n, 1, F16, "row", new=True)
    module = example("hopper/kernel/dense_gemm/dense_gemm_fp8_gelu_persistent.py")
    made = module.HopperFP8GeluPersistentGemmKernel(cutlass.Float32, (128, 64), (1, 1), 1, True)
    given, scale = (a[2], b[2], c[2]), 0.125
    compiled_with = (*given, scale, True, CLUSTERS, STREAM, module.erf_gelu)
    run(case, made, *given, scale, STREAM, compiled_with=compiled_with)
    sums, most = (each * scale for each in product(a[1], b[1]))
    value = 0.5 * sums * (1 + erf(sums / np.sqrt(2)))
    # the slope of GELU is at most 1.13
    more = 1.13 * scale * eight_bits(a[1], b[1])
    allowed = bound(value, F16, 2**-18, k, 1.13 * most) + more + 2**-18
    expect(case, c[0], c[1], value, allowed)


@case("grouped_gemm: float16, three groups, tile 64x64")
def _(case):
    sizes = [(128, 64, 64, 1), (64, 128, 128, 1), (64, 64, 192, 1)]
    groups = []
    for m, n, k, _ in sizes:
        a, b = normal(1, m, k, dtype=F16, seed=m + k), normal(1, n, k, dtype=F16, seed=n + k + 1)
        groups.append((a, b, poisoned((1, m, n), F16)))
    pointers = np.array([[case.put(each) for each in group] for group in groups], np.int64)
    strides = np.array([[(k, 1), (k, 1), (n, 1)] for m, n, k, _ in sizes], np.int32)
    shapes = np.array(sizes, np.int32)
    maps = np.zeros((CLUSTERS, 3, 16), np.int64)
    module = example("hopper/kernel/grouped_gemm/grouped_gemm.py")
    made = module.HopperGroupedGemmPersistentKernel(cutlass.Float32, (64, 64), (1, 1), 1, True)
    first = [matrix(case, 8, 8, 1, F16, "row")[2] for _ in range(3)]
    shape, stride, pointer, workspace = (
        tensor(case, each) for each in (shapes, strides, pointers, maps)
    )
    tiles = sum(m // 64 * (n // 64) for m, n, _, _ in sizes)
    run(
        case, made, *first, shape, stride, pointer, workspace, STREAM,
        compiled_with=(
            *first, len(sizes), shape, stride, pointer, tiles, workspace, CLUSTERS, STREAM
        ),
    )  # fmt: skip
    for (a, b, c), (_, _, k, _) in zip(groups, sizes):
        value, most = product(a.transpose(1, 2, 0), b.transpose(1, 2, 0))
        allowed = bound(value, F16, 0, k, most)
        case.expect(c, value.transpose(2, 0, 1), allowed.transpose(2, 0, 1))


def attended(q, k, v, scale, causal):
    """q [.., s, d], k and v [.., t, d] -> (output, magnitude, log of the sum), float64."""
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    score = q @ k.swapaxes(-1, -2) * scale
    if causal:
        score = np.where(np.tri(*score.shape[-2:], dtype=bool), score, -np.inf)
    top = score.max(-1, keepdims=True)
    weight = np.exp(score - top)
    total = weight.sum(-1, keepdims=True)
    weight /= total
    return weight @ v, weight @ np.abs(v), (top + np.log(total))[..., 0]


def add_fmha(tokens, keys, width, tile, causal, persistent):
    title = f"fmha: float16, {tokens} by {keys} tokens of {width}, tile {tile[0]}x{tile[1]}"
    title += ", causal" * causal + ", persistent" * persistent

    @case(title)
    def fill(case):
        module = example("hopper/kernel/attention/fmha.py")
        masks, scale = module.fmha_utils.MaskEnum, width**-0.5

        def operand(length, dtype=F16, seed=0, new=False, last=width):
            shape = (1, length, 1, 1, last)  # (batch, tokens, heads of k, heads of q for each)
            array = poisoned(shape, dtype) if new else normal(*shape, dtype=dtype, seed=seed)
            return array, tensor(case, array, array.transpose(1, 4, 3, 2, 0), dynamic=1)

        (q, mq), (k, mk), (v, mv) = (
            operand(length, seed=seed) for seed, length in enumerate((tokens, keys, keys))
        )
        (o, mo), (lse, ml) = operand(tokens, new=True), operand(tokens, F32, new=True, last=1)
        mask = masks.WINDOW_MASK if causal or keys % tile[1] == 0 else masks.RESIDUAL_MASK
        made = module.HopperFusedMultiHeadAttentionForward(
            cutlass.Float32, cutlass.Float32, (*tile, width), persistent, mask
        )
        right = cutlass.Int32(0) if causal else None
        tensors = mq, mk, mv, mo, ml
        asked = {
            "__init__": lambda self: None,  # it would ask a driver
            "get_max_active_clusters": lambda *args: CLUSTERS,
            "get_device_multiprocessor_count": lambda *args: CLUSTERS,
        }
        with mock.patch.multiple(cutlass.utils.HardwareInfo, **asked):
            run(case, made, *tensors, scale * np.log2(np.e), scale, 1.0, None, right, STREAM)
        value, most, log = attended(q[0, :, 0, 0], k[0, :, 0, 0], v[0, :, 0, 0], scale, causal)
        case.expect(o, value, bound(value, F16) + (2**-10 + 2**-15) * most)
        case.expect(lse, log, 2**-15 * (1 + np.abs(log)))


add_fmha(128, 128, 64, (64, 128), False, False)
add_fmha(128, 128, 64, (64, 128), True, False)
add_fmha(128, 256, 64, (64, 64), False, True)


@case("cta_norm: RMS norm, float16")
def _(case):
    x, weight, y = (
        normal(6, 512, dtype=F16),
        normal(512, dtype=F16, seed=1),
        poisoned((6, 512), F16),
    )
    made = example("hopper/kernel/cta_norm/cta_norm.py").CtaNorm(512, "rms")
    run(case, made, *(tensor(case, each) for each in (y, x, weight)), None, 1e-6)
    exact = x.astype(np.float64)
    value = exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6) * weight
    case.expect(y, value, bound(value, F16, 2**-10))


@case("cta_norm: layer norm, float16")
def _(case):
    x, weight, y = (
        normal(6, 512, dtype=F16),
        normal(512, dtype=F16, seed=1),
        poisoned((6, 512), F16),
    )
    bias = normal(512, dtype=F16, seed=2)
    made = example("hopper/kernel/cta_norm/cta_norm.py").CtaNorm(512, "layer")
    run(case, made, *(tensor(case, each) for each in (y, x, weight, bias)), 1e-6)
    exact = x.astype(np.float64)
    centred = exact - exact.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6) * weight
    value = scaled + bias
    case.expect(y, value, bound(value, F16) + 2**-10 * (np.abs(scaled) + 1))


AMPERE = ("sm_80", "sm_90")


def add_elementwise(dtype):
    @case(f"elementwise_add: {np.dtype(dtype).name}", AMPERE)
    def fill(case):
        a, b = normal(40, 512, dtype=dtype), normal(40, 512, dtype=dtype, seed=1)
        c = poisoned(a.shape, dtype)
        module = example("ampere/kernel/elementwise/elementwise_add.py")
        run(case, module.elementwise_add, *(tensor(case, each, dynamic=1) for each in (a, b, c)))
        value = a.astype(np.float64) + b.astype(np.float64)
        case.expect(c, value, bound(value, dtype))


add_elementwise(F32)
add_elementwise(F16)


@case("elementwise_apply: multiplication, float32", AMPERE)
def _(case):
    a, b, c = normal(128, 512), normal(128, 512, seed=1), poisoned((128, 512), F32)
    module = example("ampere/kernel/elementwise/elementwise_apply.py")
    inputs, out = [tensor(case, a), tensor(case, b)], tensor(case, c, dynamic=1)
    run(
        case, module.elementwise_apply, inputs, out, STREAM,
        compiled_with=(operator.mul, inputs, out, STREAM),
    )  # fmt: skip
    value = a.astype(np.float64) * b
    case.expect(c, value, bound(value, F32))


@case("sgemm: float32, 144 x 136 x 40", AMPERE)
def _(case):
    a, b, c = normal(144, 40), normal(136, 40, seed=1), poisoned((144, 136), F32)
    made = example("ampere/kernel/dense_gemm/sgemm.py").SGemm()
    tensors = [
        tensor(case, each, dynamic=1).mark_compact_shape_dynamic(mode=1, divisibility=8)
        for each in (a, b, c)
    ]
    run(case, made, *tensors)
    x, y = a.astype(np.float64), b.astype(np.float64)
    value = x @ y.T
    case.expect(c, value, bound(value, F32, 0, 40, np.abs(x) @ np.abs(y).T))


def add_tensorop(dtype, majors):
    @case(f"tensorop_gemm: {np.dtype(dtype).name}, {majors}", AMPERE)
    def fill(case):
        m, n, k = 128, 136, 64
        a = matrix(case, m, k, 1, dtype, "row" if majors[0] == "k" else "column")
        b = matrix(case, n, k, 1, dtype, "row" if majors[1] == "k" else "column")
        c = matrix(case, m, n, 1, dtype, "row", new=True)
        kinds = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16}
        kind = kinds[np.dtype(dtype).name]
        module = example("ampere/kernel/dense_gemm/tensorop_gemm.py")
        made = module.TensorOpGemm(kind, kind, cutlass.Float32, (2, 2, 1))
        for (_, _, each), major in zip((a, b, c), (*majors[:2], "k")):
            mode = 1 if major == "k" else 0
            each.mark_compact_shape_dynamic(
                mode=mode, stride_order=(2, 0, 1) if mode else (2, 1, 0), divisibility=8
            )
        run(case, made, a[2], b[2], c[2], STREAM)
        value, most = product(a[1], b[1])
        expect(case, c[0], c[1], value, bound(value, dtype, 0, k, most))


add_tensorop(F16, "kkn")
add_tensorop(BF16, "mnn")


def add_flash(causal):
    @case(f"flash_attention_v2: float16, 128 tokens of 64{', causal' * causal}", AMPERE)
    def fill(case):
        shape = (1, 128, 2, 64)
        q, k, v = (normal(*shape, dtype=F16, seed=seed) for seed in range(3))
        o = poisoned(shape, F16)
        module = example("ampere/kernel/attention/flash_attention_v2.py")
        made = module.FlashAttentionForwardAmpere(64, 64, 64, 128, causal)
        tensors = [
            tensor(case, each, dynamic=3).mark_compact_shape_dynamic(
                mode=3, stride_order=(0, 1, 2, 3), divisibility=8
            )
            for each in (q, k, v, o)
        ]
        run(case, made, *tensors, 0.125, STREAM)
        heads = [each.transpose(0, 2, 1, 3) for each in (q, k, v)]
        value, most, _ = attended(*heads, 0.125, causal)
        allowed = bound(value, F16) + (2**-10 + 2**-15) * most
        case.expect(o, value.transpose(0, 2, 1, 3), allowed.transpose(0, 2, 1, 3))


add_flash(False)
add_flash(True)
