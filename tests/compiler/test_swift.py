"""Contract under test: what makes compiling fast changes nothing of what is made, and is gone when
a compilation has ended, however it ended."""

import contextlib
import gc
from dataclasses import dataclass, replace

import pytest

from numba_marlin.compiler import build, numba_cuda, swift
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
    monkeypatch.setattr(swift, "remembered_calls", lambda *classes: contextlib.nullcontext())
    assert build(KERNEL, Sum(), cache=False).ptx == quick


@dataclass(frozen=True)
class Sizes:
    words: int = 4
    other: int = 0


def make_of_sizes(lang, config):
    """A function that is called with literals, of which one is the size of an array, and functions
    over a configuration: one reads a number of it, one passes all of it on."""
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    cfg, never = lang.constants(config), config.words < 0

    @lang.device
    def filled(words, first):
        kept = cuda.local.array(words, uint32)
        for i in range(words):
            kept[i] = uint32(first + i)
        return kept[0] + kept[words - 1]

    @lang.device
    def of_part(stage):
        if stage == 0:
            return uint32(cfg.words)
        if never:
            return uint32(cfg.there_is_no_such_member)
        return uint32(cfg.words * stage)

    @lang.device
    def other_of(sizes):
        return uint32(sizes.other)

    @lang.device
    def of_whole():
        return other_of(cfg)

    def kernel(address, number):
        total = of_whole()
        for stage in range(3):
            total += of_part(stage)
        total += filled(2, 0) * filled(5, 1) + of_part(7)
        ptx.st_global_b32(address, total * uint32(number))

    kernel.functions = of_part, of_whole
    return kernel


OF_SIZES = replace(KERNEL, name="sizes", config_type=Sizes, make=make_of_sizes)


def test_a_function_called_with_integers_makes_the_same_ptx(monkeypatch):
    quick = build(OF_SIZES, Sizes(), cache=False).ptx
    monkeypatch.setattr(swift, "any_integer", lambda *classes: contextlib.nullcontext())
    assert build(OF_SIZES, Sizes(), cache=False).ptx == quick


def test_a_function_is_one_for_all_configurations_that_agree_in_what_it_reads():
    language = numba_cuda.language()

    def functions(config):
        return make_of_sizes(language, config).functions

    part, whole = functions(Sizes(4, 0))
    other_part, other_whole = functions(Sizes(4, 1))
    assert part is other_part and whole is not other_whole
    assert part is not functions(Sizes(5, 0))[0]


@pytest.mark.parametrize("fails", (False, True))
def test_numba_is_left_as_it_was_and_garbage_is_collected_again(fails):
    numba = numba_cuda._numba()

    def replaced():
        return (
            numba.typing_context.resolve_function_type,
            numba.types.BaseFunction.get_call_type,
            numba.types.Dispatcher.get_call_type,
        )

    before = replaced()
    with pytest.raises(Exception, match="must be one u32") if fails else contextlib.nullcontext():
        build(KERNEL, Sum(fails), cache=False)
    assert gc.isenabled() and before == replaced()
