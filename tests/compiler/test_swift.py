"""Contract under test: what makes compiling fast changes nothing of what is made, and is gone when
a compilation has ended, however it ended."""

import contextlib
import gc
from dataclasses import dataclass

import pytest

from numba_marlin.compiler import build, numba_cuda
from numba_marlin.kernels.language.definition import KernelDefinition


@dataclass(frozen=True)
class Sum:
    fails: bool = False


def make(lang, config):
    """Calls of the same functions with arguments of several types; conversions of numbers; arrays
    and tuples."""
    fails, cuda, ptx, uint32, uint64, int64, float32 = (
        config.fails,
        lang.cuda,
        lang.ptx,
        lang.uint32,
        lang.uint64,
        lang.int64,
        lang.float32,
    )

    @lang.device
    def step(value, other):
        return value + other, uint32(uint64(value) * uint64(3)) ^ uint32(other)

    def kernel(address, number):
        kept = cuda.local.array(4, uint32)
        for i in range(4):
            a, b = step(uint32(number), uint32(i))
            c, d = step(int64(number), int64(i) - int64(2))
            kept[i] = uint32(a) + b + uint32(c) * d
        if fails:
            ptx.st_global_b32(address, (kept[0], kept[1]))
        ptx.st_global_v2_f32(
            address, (float32(kept[0] + kept[1] % kept[3]), float32(kept[2]) + float32(0.5))
        )

    return kernel


KERNEL = KernelDefinition(
    name="sum",
    config_type=Sum,
    parameters=(("address", "u64"), ("number", "i32")),
    make=make,
    threads=lambda config: 32,
    shared_bytes=lambda config: 0,
    grid=lambda config, m, n, k, sms: (1, 1, 1),
)


def test_remembered_calls_make_the_same_ptx(monkeypatch):
    quick = build(KERNEL, Sum(), cache=False).ptx
    monkeypatch.setattr(numba_cuda, "remembered_calls", lambda *classes: contextlib.nullcontext())
    assert build(KERNEL, Sum(), cache=False).ptx == quick


@pytest.mark.parametrize("fails", (False, True))
def test_numba_is_left_as_it_was_and_garbage_is_collected_again(fails):
    numba = numba_cuda._numba()
    before = numba.typing_context.resolve_function_type, numba.types.BaseFunction.get_call_type
    with pytest.raises(Exception, match="must be one u32") if fails else contextlib.nullcontext():
        build(KERNEL, Sum(fails), cache=False)
    assert gc.isenabled() and before == (
        numba.typing_context.resolve_function_type,
        numba.types.BaseFunction.get_call_type,
    )
