"""Kernels in Warp, each with its float64 result and the bound of its error."""

import numpy as np
import warp as wp
from on_warp import launch
from recording import bound, poisoned

CASES: list = []  # (name, function that fills a Case)
F32 = np.float32


def case(name: str):
    def register(function):
        CASES.append((name, function))
        return function

    return register


def normal(*shape, dtype=F32, seed=34):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@wp.kernel(module="unique")
def saxpy(s: float, x: wp.array(dtype=float), y: wp.array(dtype=float), z: wp.array(dtype=float)):
    i = wp.tid()
    z[i] = s * x[i] + y[i]


@case("saxpy")
def _(case):
    x, y, z = normal(1000), normal(1000, seed=1), poisoned(1000, F32)
    launch(case, saxpy, 1000, 1.5, x, y, z)
    value = 1.5 * x.astype(np.float64) + y
    case.expect(z, value, bound(value, F32, 0, 2, np.abs(1.5 * x) + np.abs(y)))


@case("saxpy, its backward pass")
def _(case):
    x, y, z = normal(1000), normal(1000, seed=1), poisoned(1000, F32)
    dx, dy, dz = np.zeros(1000, F32), np.zeros(1000, F32), normal(1000, seed=2)
    gradients = (None, dx, dy, dz)
    launch(
        case, saxpy, 1000, 1.5, x, y, z, adjoints=(0.0, dx, dy, dz), gradients=gradients
    )  # fmt: skip
    value = 1.5 * dz.astype(np.float64)
    case.expect(dx, value, bound(value, F32))
    case.expect(dy, dz)


@wp.kernel(module="unique")
def functions(x: wp.array(dtype=float), y: wp.array2d(dtype=float)):
    i = wp.tid()
    y[0, i] = wp.sin(x[i])
    y[1, i] = wp.exp(x[i])
    y[2, i] = wp.sqrt(wp.abs(x[i]))
    y[3, i] = wp.tanh(x[i])
    y[4, i] = wp.atan2(x[i], 2.0)
    y[5, i] = wp.pow(wp.abs(x[i]) + 0.5, 1.5)


@case("mathematical functions")
def _(case):
    x, y = normal(500), poisoned((6, 500), F32)
    launch(case, functions, 500, x, y)
    a = x.astype(np.float64)
    rows = [np.sin(a), np.exp(a), np.sqrt(np.abs(a)), np.tanh(a), np.arctan2(a, 2)]
    value = np.stack([*rows, (np.abs(a) + 0.5) ** 1.5])
    case.expect(y, value, bound(value, F32, 2**-20) + 2**-22)


@wp.kernel(module="unique")
def vectors(
    a: wp.array(dtype=wp.vec3), b: wp.array(dtype=wp.vec3),
    dots: wp.array(dtype=float), crosses: wp.array(dtype=wp.vec3),
):  # fmt: skip
    i = wp.tid()
    dots[i] = wp.dot(a[i], b[i])
    crosses[i] = wp.cross(a[i], b[i]) + wp.vec3(1.0, 2.0, 3.0)


@case("vectors: dot and cross")
def _(case):
    a, b = normal(300, 3), normal(300, 3, seed=1)
    dots, crosses = poisoned(300, F32), poisoned((300, 3), F32)
    launch(case, vectors, 300, (1, a), (1, b), dots, (1, crosses))
    x, y = a.astype(np.float64), b.astype(np.float64)
    value = (x * y).sum(1)
    case.expect(dots, value, bound(value, F32, 0, 3, np.abs(x * y).sum(1)))
    value, most = np.cross(x, y) + [1, 2, 3], np.abs(x).max(1) * np.abs(y).max(1)
    case.expect(crosses, value, bound(value, F32, 0, 3, 2 * most[:, None] + 3))


@wp.kernel(module="unique")
def normalised(a: wp.array(dtype=wp.vec3), b: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    b[i] = wp.normalize(a[i])


@case("vectors: normalised")
def _(case):
    a, b = normal(300, 3), poisoned((300, 3), F32)
    launch(case, normalised, 300, (1, a), (1, b))
    x = a.astype(np.float64)
    value = x / np.linalg.norm(x, axis=1, keepdims=True)
    case.expect(b, value, bound(value, F32, 2**-20))


@wp.kernel(module="unique")
def matrices(
    a: wp.array(dtype=wp.mat33), b: wp.array(dtype=wp.mat33),
    c: wp.array(dtype=wp.mat33), d: wp.array(dtype=float),
):  # fmt: skip
    i = wp.tid()
    c[i] = wp.transpose(a[i]) * b[i]
    d[i] = wp.determinant(a[i])


@case("matrices: product and determinant")
def _(case):
    a, b = normal(200, 3, 3), normal(200, 3, 3, seed=1)
    c, d = poisoned((200, 3, 3), F32), poisoned(200, F32)
    launch(case, matrices, 200, (2, a), (2, b), (2, c), d)
    x, y = a.astype(np.float64), b.astype(np.float64)
    t = x.transpose(0, 2, 1)
    case.expect(c, t @ y, bound(t @ y, F32, 0, 3, np.abs(t) @ np.abs(y)))
    value, most = np.linalg.det(x), np.prod(np.linalg.norm(np.abs(x), axis=2), axis=1)
    case.expect(d, value, bound(value, F32, 0, 12, 2 * most))


@wp.kernel(module="unique")
def rotated(q: wp.array(dtype=wp.quat), v: wp.array(dtype=wp.vec3), w: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    w[i] = wp.quat_rotate(wp.normalize(q[i]), v[i])


@case("quaternions: rotated")
def _(case):
    q, v, w = normal(200, 4), normal(200, 3, seed=1), poisoned((200, 3), F32)
    launch(case, rotated, 200, (1, q), (1, v), (1, w))
    x = q.astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    u, s, y = x[:, :3], x[:, 3:], v.astype(np.float64)
    value = y + 2 * np.cross(u, np.cross(u, y) + s * y)
    most = np.linalg.norm(y, axis=1, keepdims=True)
    case.expect(w, value, bound(value, F32) + 2**-19 * most)


@wp.kernel(module="unique")
def counted(x: wp.array(dtype=int), bins: wp.array(dtype=int), total: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_add(bins, x[i], 1)
    wp.atomic_add(total, 0, 0.5)


@case("atomics: histogram and sum")
def _(case):
    x = np.random.default_rng(34).integers(0, 16, 1000).astype(np.int32)
    bins, total = np.zeros(16, np.int32), np.zeros(1, F32)
    launch(case, counted, 1000, x, bins, total)
    case.expect(bins, np.bincount(x, minlength=16))
    case.expect(total, [500.0])


@wp.kernel(module="unique")
def extremes(x: wp.array(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_min(y, 0, x[i])
    wp.atomic_max(y, 1, x[i])


@case("atomics: minimum and maximum")
def _(case):
    x, y = normal(700), np.zeros(2, F32)
    launch(case, extremes, 700, x, y)
    case.expect(y, [x.min(), x.max()])


@wp.kernel(module="unique")
def smoothed(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float)):
    i, j = wp.tid()
    if i > 0 and j > 0 and i < x.shape[0] - 1 and j < x.shape[1] - 1:
        y[i, j] = 0.25 * (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])
    else:
        y[i, j] = x[i, j]


@case("a stencil in two dimensions")
def _(case):
    x, y = normal(20, 30), poisoned((20, 30), F32)
    launch(case, smoothed, (20, 30), x, y)
    a, value = x.astype(np.float64), x.astype(np.float64)
    value = value.copy()
    value[1:-1, 1:-1] = 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
    case.expect(y, value, 4 * 2**-23 * np.abs(a).max())


@wp.struct
class Particle:
    mass: float
    position: wp.vec3
    alive: int


@wp.kernel(module="unique")
def attracted(centre: Particle, x: wp.array(dtype=wp.vec3), f: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    between = centre.position - x[i]
    if centre.alive == 1:
        f[i] = between * (centre.mass / (wp.dot(between, between) + 1.0))


@case("a struct as argument")
def _(case):
    centre = Particle()
    centre.mass, centre.position, centre.alive = 2.0, wp.vec3(1.0, 0.5, -1.0), 1
    x, f = normal(200, 3), poisoned((200, 3), F32)
    launch(case, attracted, 200, centre, (1, x), (1, f))
    between = np.array([1, 0.5, -1]) - x.astype(np.float64)
    value = between * (2 / ((between**2).sum(1, keepdims=True) + 1))
    case.expect(f, value, bound(value, F32, 2**-19) + 2**-22)


@wp.func
def step(state: float, by: float):
    return state * 0.5 + by


@wp.kernel(module="unique")
def iterated(x: wp.array2d(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    state = float(0.0)  # noqa: UP018 - to Warp a variable, not a constant
    for j in range(x.shape[1]):
        if x[i, j] > 0.0:
            state = step(state, x[i, j])
    y[i] = state


@case("a function, a loop of dynamic length, a branch")
def _(case):
    x, y = normal(100, 37), poisoned(100, F32)
    launch(case, iterated, 100, x, y)
    value = np.zeros(100)
    for column in x.T.astype(np.float64):
        value = np.where(column > 0, value * 0.5 + column, value)
    case.expect(y, value, bound(value, F32, 0, 4, np.abs(x).max()))


@wp.kernel(module="unique")
def integers(x: wp.array(dtype=wp.int64), y: wp.array(dtype=wp.int64)):
    i = wp.tid()
    three = wp.int64(3)
    y[i] = ((x[i] * three) ^ (x[i] >> three)) + x[i] % wp.int64(7)


@case("integers of 64 bits")
def _(case):
    x = np.random.default_rng(34).integers(0, 2**40, 300)
    y = poisoned(300, np.int64)
    launch(case, integers, 300, x, y)
    case.expect(y, ((x * 3) ^ (x >> 3)) + x % 7)


@wp.kernel(module="unique")
def halves(x: wp.array(dtype=wp.float16), y: wp.array(dtype=wp.float64)):
    i = wp.tid()
    y[i] = wp.float64(x[i] * wp.float16(0.5) + wp.float16(1.0))


@case("float16 and float64")
def _(case):
    x, y = normal(300, dtype=np.float16), poisoned(300, np.float64)
    launch(case, halves, 300, x, y)
    value = x.astype(np.float64) * 0.5 + 1
    case.expect(y, value, 2**-10 * (np.abs(value) + 1))


@wp.kernel(module="unique")
def drawn(seed: int, y: wp.array(dtype=float)):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    y[i] = wp.randf(state)


@case("random numbers: those of Warp's CPU kernel")
def _(case):
    y, on_cpu = poisoned(300, F32), wp.zeros(300, dtype=float, device="cpu")
    wp.launch(drawn, 300, inputs=[42, on_cpu], device="cpu")
    launch(case, drawn, 300, 42, y)
    case.expect(y, on_cpu.numpy())


WIDE, DEEP, TALL = wp.constant(32), wp.constant(64), wp.constant(16)


@wp.kernel(module="unique")
def tile_sums(x: wp.array2d(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    row = wp.tile_load(x[i], shape=DEEP)
    wp.tile_store(y, wp.tile_sum(row), offset=i)


@case("tiles: sums of rows")
def _(case):
    x, y = normal(8, 64), poisoned(8, F32)
    launch(case, tile_sums, 8, x, y, tiled=64)
    value = x.astype(np.float64).sum(1)
    case.expect(y, value, bound(value, F32, 0, 64, np.abs(x).sum(1)))


@wp.kernel(module="unique")
def tile_map(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float)):
    i, j = wp.tid()
    part = wp.tile_load(x, shape=(TALL, WIDE), offset=(i * TALL, j * WIDE))
    wp.tile_store(y, wp.tile_map(wp.sin, part) * 2.0, offset=(i * TALL, j * WIDE))


@case("tiles: a function of each element")
def _(case):
    x, y = normal(32, 64), poisoned((32, 64), F32)
    launch(case, tile_map, (2, 2), x, y, tiled=64)
    value = 2 * np.sin(x.astype(np.float64))
    case.expect(y, value, bound(value, F32, 2**-20) + 2**-22)


@wp.kernel(module="unique")
def tile_products(
    a: wp.array2d(dtype=float), b: wp.array2d(dtype=float), c: wp.array2d(dtype=float)
):
    i, j = wp.tid()
    total = wp.tile_zeros(shape=(TALL, TALL), dtype=float)
    for k in range(a.shape[1] / WIDE):
        left = wp.tile_load(a, shape=(TALL, WIDE), offset=(i * TALL, k * WIDE))
        right = wp.tile_load(b, shape=(WIDE, TALL), offset=(k * WIDE, j * TALL))
        wp.tile_matmul(left, right, total)
    wp.tile_store(c, total, offset=(i * TALL, j * TALL))


@case("tiles: a matrix product")
def _(case):
    a, b, c = normal(32, 64), normal(64, 32, seed=1), poisoned((32, 32), F32)
    launch(case, tile_products, (2, 2), a, b, c, tiled=64)
    x, y = a.astype(np.float64), b.astype(np.float64)
    case.expect(c, x @ y, bound(x @ y, F32, 0, 64, np.abs(x) @ np.abs(y)))


@wp.kernel(module="unique")
def tile_transposed(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float)):
    i, j = wp.tid()
    part = wp.tile_load(x, shape=(TALL, WIDE), offset=(i * TALL, j * WIDE), storage="shared")
    wp.tile_store(y, wp.tile_transpose(part), offset=(j * WIDE, i * TALL))


@case("tiles: transposed by way of shared memory")
def _(case):
    x, y = normal(32, 64), poisoned((64, 32), F32)
    launch(case, tile_transposed, (2, 2), x, y, tiled=64)
    case.expect(y, x.T)


@wp.kernel(module="unique")
def tile_scan(x: wp.array2d(dtype=int), y: wp.array2d(dtype=int)):
    i = wp.tid()
    wp.tile_store(y[i], wp.tile_scan_inclusive(wp.tile_load(x[i], shape=DEEP)))


@case("tiles: a scan")
def _(case):
    x = np.random.default_rng(34).integers(-9, 10, (4, 64)).astype(np.int32)
    y = poisoned((4, 64), np.int32)
    launch(case, tile_scan, 4, x, y, tiled=64)
    case.expect(y, np.cumsum(x, 1))


@wp.kernel(module="unique")
def tile_sorted(keys: wp.array2d(dtype=int), values: wp.array2d(dtype=int)):
    i = wp.tid()
    k = wp.tile_load(keys[i], shape=DEEP, storage="shared")
    v = wp.tile_load(values[i], shape=DEEP, storage="shared")
    wp.tile_sort(k, v)
    wp.tile_store(keys[i], k)
    wp.tile_store(values[i], v)


@case("tiles: sorted")
def _(case):
    keys = np.random.default_rng(34).permutation(4 * 64).reshape(4, 64).astype(np.int32)
    values, before = np.arange(4 * 64, dtype=np.int32).reshape(4, 64), keys.copy()
    launch(case, tile_sorted, 4, keys, values, tiled=64)
    order = np.argsort(before, 1)
    case.expect(values, np.take_along_axis(np.arange(4 * 64).reshape(4, 64), order, 1))
    case.expect(keys, np.sort(before, 1))
