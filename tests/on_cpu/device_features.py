"""Features of numba.cuda that kernels use, and what is made of kernels: reductions, ufuncs."""

import contextlib
import io

import numpy as np

from tests.on_cpu.feature import feature

int32 = np.int32


@feature("`shared.array`, `syncthreads` and its count, and, or")
def shared_arrays(cuda):
    @cuda.jit
    def voted(x, out):
        part = cuda.shared.array(64, np.float32)
        t = cuda.threadIdx.x
        part[t] = x[t]
        cuda.syncthreads()
        out[0, t] = part[63 - t]
        out[1, t] = cuda.syncthreads_count(int32(t < 10))
        out[2, t] = cuda.syncthreads_and(int32(t < 64))
        out[3, t] = cuda.syncthreads_or(int32(t == 70))

    x, out = np.arange(64, dtype=np.float32), np.zeros((4, 64), np.float32)
    voted[1, 64](x, out)
    assert (out[0] == x[::-1]).all() and (out[1] == 10).all()
    assert (out[2] != 0).all() and (out[3] == 0).all()


@feature("`local.array`, `const.array_like`")
def local_arrays(cuda):
    table = np.array([3.0, 1.0, 4.0, 1.0], np.float32)

    @cuda.jit
    def chosen(out):
        mine, fixed = cuda.local.array(4, np.float32), cuda.const.array_like(table)
        t = cuda.threadIdx.x
        for j in range(4):
            mine[j] = fixed[(t + j) % 4]
        out[t] = mine[t % 4]

    out = np.zeros(8, np.float32)
    chosen[1, 8](out)
    t = np.arange(8)
    assert (out == table[(t + t % 4) % 4]).all()


@feature("atomics: add, sub, max, min, and, or, xor, inc, dec, exch, cas")
def atomics(cuda):
    @cuda.jit
    def all_of_them(out):
        t = cuda.grid(1)
        cuda.atomic.add(out, 0, 1)
        cuda.atomic.sub(out, 1, 1)
        cuda.atomic.max(out, 2, t)
        cuda.atomic.min(out, 3, t)
        cuda.atomic.and_(out, 4, ~(1 << (t % 8)))
        cuda.atomic.or_(out, 5, 1 << (t % 8))
        cuda.atomic.xor(out, 6, 1)
        cuda.atomic.exch(out, 7, 9)
        cuda.atomic.cas(out, 8, 0, 5)

    @cuda.jit
    def in_turns(out):
        cuda.atomic.inc(out, 0, 99)
        cuda.atomic.dec(out, 1, 99)

    out = np.zeros(9, np.int32)
    out[3], out[4] = 7, 255
    all_of_them[2, 64](out)
    assert out.tolist() == [128, -128, 127, 0, 0, 255, 0, 9, 5]
    wrapped = np.zeros(2, np.uint32)
    in_turns[2, 64](wrapped)
    assert wrapped.tolist() == [28, 72]


@feature("warps: shuffles, votes, matches, `syncwarp`, `laneid`")
def warps(cuda):
    @cuda.jit
    def summed(x, out):
        t = cuda.threadIdx.x
        value = x[t]
        for distance in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
        cuda.syncwarp()
        out[0, t] = cuda.shfl_sync(0xFFFFFFFF, value, 0)
        out[1, t] = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, t % 2 == 0))
        out[2, t] = cuda.laneid
        out[3, t] = cuda.match_any_sync(0xFFFFFFFF, t % 4) != 0

    x, out = np.arange(32, dtype=np.int32), np.zeros((4, 32), np.int32)
    summed[1, 32](x, out)
    assert (out[0] == x.sum()).all() and (out[1] == 16).all() and (out[2] == x).all()


@feature("cooperative groups: `cg.this_grid().sync()`")
def grids(cuda):
    @cuda.jit
    def passed_on(table):
        i, grid = cuda.grid(1), cuda.cg.this_grid()
        for row in range(1, table.shape[0]):
            table[row, i] = table[row - 1, table.shape[1] - 1 - i] + 1
            grid.sync()

    table = np.zeros((4, 64), np.int32)
    passed_on[2, 32](table)
    assert (table == np.arange(4)[:, None]).all()


@feature("device functions, also within each other and with tuples")
def device_functions(cuda):
    @cuda.jit(device=True)
    def twice(x):
        return 2 * x

    @cuda.jit(device=True)
    def both(x):
        return twice(x), x + 1

    @cuda.jit
    def used(out):
        i = cuda.grid(1)
        a, b = both(i)
        out[i] = a + b

    out = np.zeros(32, np.int32)
    used[1, 32](out)
    assert (out == 3 * np.arange(32) + 1).all()


@feature("records, complex numbers, float16, bool")
def kinds(cuda):
    @cuda.jit
    def mixed(records, z, half, flags):
        i = cuda.grid(1)
        records[i].a = records[i].b + 1
        z[i] = z[i] * z[i]
        half[i] = half[i] + half[i]
        flags[i] = i % 2 == 0

    records = np.zeros(8, np.dtype([("a", np.int32), ("b", np.float64)], align=True))
    records["b"], z = np.arange(8), np.arange(8) * (1 + 1j)
    half, flags = np.arange(8, dtype=np.float16), np.zeros(8, np.bool_)
    mixed[1, 8](records, z, half, flags)
    assert (records["a"] == np.arange(8) + 1).all() and np.allclose(z, np.arange(8) ** 2 * 2j)
    assert (half == 2 * np.arange(8)).all() and (flags == (np.arange(8) % 2 == 0)).all()


@feature("functions of `math` and `cuda.libdevice`, fast math")
def functions(cuda):
    import math

    @cuda.jit(fastmath=True)
    def taken(x, out):
        i = cuda.grid(1)
        out[i] = math.exp(x[i]) + math.sin(x[i]) + math.sqrt(x[i])

    x = np.linspace(0.1, 2, 32)
    out = np.zeros(32)
    taken[1, 32](x, out)
    assert np.allclose(out, np.exp(x) + np.sin(x) + np.sqrt(x))


@feature("`print` in a kernel")
def printing(cuda):
    @cuda.jit
    def says(x):
        print("thread", cuda.threadIdx.x, "has", x[cuda.threadIdx.x])

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        says[1, 3](np.arange(3))
        cuda.synchronize()
    assert said.getvalue().count("thread") == 3


@feature("exceptions with `debug=True`")
def exceptions(cuda):
    @cuda.jit(debug=True, opt=False)
    def checked(x):
        i = cuda.grid(1)
        if x[i] > 2:
            raise ValueError("too large")
        x[i] += 1

    checked[1, 2](np.zeros(2))
    try:
        checked[1, 4](np.arange(4.0))
    except ValueError:
        pass
    else:
        raise AssertionError("nothing was raised")


@feature("`cuda.reduce`")
def reductions(cuda):
    total = cuda.reduce(lambda a, b: a + b)
    assert total(np.arange(1000.0)) == 499500


@feature("ufuncs and generalised ufuncs: `vectorize`, `guvectorize`")
def ufuncs(cuda):
    from numba import guvectorize, vectorize

    @vectorize(["float32(float32, float32)"], target="cuda")
    def added(a, b):
        return a + b

    @guvectorize(["void(float32[:], float32[:])"], "(n)->()", target="cuda")
    def summed(row, out):
        out[0] = 0
        for value in row:
            out[0] += value

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert (added(x, x) == 2 * x).all() and (summed(x) == x.sum(axis=1)).all()


@feature("random numbers: `cuda.random`")
def random_numbers(cuda):
    from importlib import import_module

    random = import_module(f"{cuda.__name__}.random")
    draw = random.xoroshiro128p_uniform_float32

    @cuda.jit
    def drawn(states, out):
        i = cuda.grid(1)
        out[i] = draw(states, i)

    out = np.zeros(64, np.float32)
    drawn[2, 32](random.create_xoroshiro128p_states(64, seed=1), out)
    assert len(set(out.tolist())) > 60 and 0 <= out.min() and out.max() < 1


@feature("an error with file, line, thread and index")
def errors(cuda):
    @cuda.jit
    def too_far(x):
        x[cuda.grid(1)] = 1

    try:
        too_far[1, 64](cuda.to_device(np.zeros(33)))
    except Exception as error:
        said = str(error)
        assert "features.py, line" in said and "thread (33, 0, 0)" in said and "x[33]" in said
    else:
        raise AssertionError("nothing was said")
