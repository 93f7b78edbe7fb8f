"""Contract under test: what is read off assembler logs, SASS and PTX; and the static gates, shown
to fail on code that deserves it."""

from dataclasses import dataclass, replace

import pytest

from numba_marlin.compiler import (
    AssemblyError,
    CompiledKernel,
    Resources,
    assemble,
    build,
    gates,
    resources,
)
from numba_marlin.compiler.compiled import from_bytes, to_bytes
from numba_marlin.hardware.targets import target_named
from numba_marlin.kernels.language.definition import KernelDefinition

PTXAS = """ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function 'marlin_ampere' for 'sm_90a'
ptxas info    : Function properties for marlin_ampere
    16 bytes stack frame, 24 bytes spill stores, 36 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 57.995 ms
"""
PTXAS_ZEROS = """ptxas info    : Function properties for marlin_ampere
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 380 bytes cmem[0]
"""
NVJITLINK = """ptxas info    : 0 bytes gmem
ptxas info    : Function properties for marlin_ampere
ptxas         .     0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
info    : Function properties for 'marlin_ampere':
info    : used 42 registers, used 1 barriers, 12 stack, 1024 bytes smem, 572 bytes cmem[0], \
0 bytes lmem
"""
NVJITLINK_SHORT = """info    : 8 bytes gmem
info    : Function properties for 'marlin_ampere':
info    : used 40 registers, 0 stack, 0 bytes smem, 572 bytes cmem[0], 0 bytes lmem
"""


@pytest.mark.parametrize(
    "log, expected",
    [
        (PTXAS, (168, 24, 36, 16, 1024)),
        (PTXAS_ZEROS, (40, 0, 0, 0, 0)),
        (NVJITLINK, (42, 4, 8, 12, 1024)),
        (NVJITLINK_SHORT, (40, 0, 0, 0, 0)),
        ("", (None,) * 5),
    ],
    ids=["ptxas", "ptxas zeros", "nvJitLink", "nvJitLink short", "empty"],
)
def test_logs(log, expected):
    figures = resources.parse_log(log)
    assert (
        tuple(
            figures[name]
            for name in ("registers", "spill_stores", "spill_loads", "stack", "static_shared")
        )
        == expected
    )


def test_remarks_on_serialised_wgmma_are_kept_once_each():
    lines = (
        (
            "ptxas info    : (C7517) wgmma.wait_group is injected in around line 126 by compiler to"
            " allow use of registers defined by GMMA in function 'k'"
        ),
        (  # the same from ptxas 13.0
            "ptxas info    : (C7517) warpgroup.wait is injected in around line 48 by compiler to"
            " allow use of registers defined by GMMA in function 'k'"
        ),
        (
            "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are"
            " serialized due to insufficient register resources in 'k'"
        ),
    )
    found = resources.parse_log("\n".join([lines[0], PTXAS, *lines]))["serialized"]
    assert found == "; ".join(line.partition(" : ")[2] for line in lines)
    assert resources.parse_log(PTXAS)["serialized"] is None


def test_sass_listings_are_counted_with_predicates_and_without_padding(monkeypatch):
    listing = """        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0090*/              @!P0 BRA `(.L_x_0) ;
        /*00a0*/              @!UP1 UMOV UR4, 0x400 ;
        /*00b0*/                   HMMA.16816.F32 R4, R4, R8, RZ ;
        /*10c0*/                   HMMA.16816.F32 R4, R4, R8, R4 ;
        /*10d0*/                   NOP;
.L_x_0:
"""
    counted = resources.count_sass(listing)
    assert counted == {"BRA": 1, "HMMA.16816.F32": 2, "LDC": 1, "UMOV": 1}
    monkeypatch.setattr(gates, "_listing", lambda cubin: listing)
    compiled = replace(compiled_with(CLEAN), cubin=b"code")
    assert gates.machine_count(compiled, "HMMA") == 2 and gates.machine_count(compiled, "HM") == 0
    assert gates.machine_count(compiled_with(CLEAN), "HMMA") is None


def test_ptx_is_counted_inside_inline_assembly_too():
    ptx = """.version 9.4
.visible .entry k(
\t.param .u64 k_param_0
)
.maxntid 32, 1, 1
{
\t.reg .pred \t%p<4>;
\tld.param.u64 \t%rd1, [k_param_0];
$L__BB0_1:
\t// begin inline asm; mov.b32 in a comment
\t{
    .reg .pred p; /* setp.eq.s32 p, 1, 2; */
    setp.ne.b32 p, %r1, 0;
    @p cp.async.cg.shared.global [%r2], [%rd3], 16;
}
\t// end inline asm
\t@!%p1 bra \t$L__BB0_1;
\tret;
}
"""
    assert resources.count_ptx(ptx) == {
        "bra": 1,
        "cp.async.cg.shared.global": 1,
        "ld.param.u64": 1,
        "ret": 1,
        "setp.ne.b32": 1,
    }


def compiled_with(ptx, **figures):
    return CompiledKernel(
        "k", None, "sm_80", "numba-cuda", ptx, "k", (), 32, 0, None, Resources(**figures), "", {}
    )


CLEAN = ".visible .entry k()\n{\n\tadd.f32 \t%f1, %f2, %f64;\n\tret;\n}\n"
STATIC = ".visible .shared .align 4 .b8 s[16];\n" + CLEAN
DYNAMIC = ".extern .shared .align 128 .b8 dynamic_shared[];\n"


@pytest.mark.parametrize(
    "ptx, figures, message",
    [
        (
            CLEAN.replace("\tadd", "\t.local .align 4 .b8 __local_depot0[16];\n\tadd"),
            {},
            "local memory",
        ),
        (CLEAN.replace("add.f32", "cvt.rn.f64.u32"), {}, "cvt.rn.f64.u32"),
        (
            CLEAN.replace("\tret", "\tcall.uni (retval0), f, (param0);\n\tret"),
            {},
            "calls functions",
        ),
        (DYNAMIC + STATIC, {}, "static and dynamic shared"),
        (DYNAMIC + STATIC.replace(".visible .shared", ".shared"), {}, "static and dynamic shared"),
        (CLEAN, {"spill_stores": 8}, "8 bytes of spill stores"),
        (CLEAN, {"spill_loads": 4}, "4 bytes of spill loads"),
        (CLEAN, {"stack": 16}, "16 bytes of stack"),
        (CLEAN, {"serialized": "(C7514) wgmma.mma_async instructions are serialized"}, "(C7514)"),
    ],
)
def test_gates_can_fail(ptx, figures, message):
    for good in (CLEAN, STATIC, DYNAMIC + CLEAN):
        assert gates.broken_promises(compiled_with(good)) == []
    found = gates.broken_promises(compiled_with(ptx, **figures))
    assert len(found) == 1 and message in found[0]


def wgmma_kernel(touched):
    def make(lang, config):
        ptx, uint32, uint64, float32 = lang.ptx, lang.uint32, lang.uint64, lang.float32
        zero, multiply, wait = (
            ptx.zero_f32(width=4),
            ptx.wgmma_m64k16_f32_f16_ss(n=8),
            ptx.wgmma_wait_group_f32(n=0, width=4),
        )

        def kernel(address, number):
            ptx.wgmma_fence()
            acc = multiply(zero(), uint64(number), uint64(number), uint32(1))
            ptx.wgmma_commit_group()
            if touched:
                acc = (acc[0] + float32(1), acc[1], acc[2], acc[3])
            ptx.st_global_v4_f32(address, wait(acc))

        return kernel

    return make


def test_an_accumulator_that_is_touched_before_the_wait_is_caught():
    good, bad = (
        build(_kernel(wgmma_kernel(touched)), Nothing(), target="sm_90a", cache=False)
        for touched in (False, True)
    )
    assert gates.broken_promises(good) == []
    assert "the assembler serialised wgmma" in "\n".join(gates.broken_promises(bad))
    assert from_bytes(to_bytes(bad), bad.config).resources == bad.resources


@dataclass(frozen=True)
class Nothing:
    pass


def _kernel(body):
    return KernelDefinition(
        name="bad",
        config_type=Nothing,
        parameters=(("address", "u64"), ("number", "i32")),
        make=body,
        threads=lambda c: 32,
        shared_bytes=lambda c: 0,
        grid=lambda c, m, n, k, sms: (1, 1, 1),
    )


def test_the_trap_of_mixed_signs_is_caught():
    """By the language where a number of 32 bits is unsigned, else by the gate."""

    def make(lang, config):
        ptx, uint32, int64 = lang.ptx, lang.uint32, lang.int64

        def kernel(address, number):
            if uint32(number) < 5 * int64(number) + 1:
                ptx.st_global_b32(address, uint32(1) + uint32(number) / 3)

        return kernel

    def forgiving(lang, config):
        ptx, int64, float32 = lang.ptx, lang.int64, lang.float32

        def kernel(address, number):
            ptx.st_global_v2_f32(address, (float32(int64(number) * 0.1), float32(0)))

        return kernel

    with pytest.raises(Exception, match="convert one of them explicitly"):
        build(_kernel(make), Nothing(), cache=False)
    assert any(
        "double precision" in broken
        for broken in gates.broken_promises(build(_kernel(forgiving), Nothing(), cache=False))
    )


def test_an_array_that_stays_in_memory_is_caught():
    def make(lang, config):
        cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32

        def kernel(address, number):
            values = cuda.local.array(64, uint32)
            for i in range(number):
                values[i] = ptx.ld_global_b32(address)
            for i in range(number):
                ptx.st_global_b32(address, values[number - i])

        return kernel

    found = gates.broken_promises(build(_kernel(make), Nothing(), cache=False))
    assert any("local memory" in broken for broken in found) and any(
        "stack" in broken for broken in found
    )


@pytest.fixture(scope="module")
def ptx():
    def make(lang, config):
        ptx, uint32 = lang.ptx, lang.uint32

        def kernel(address, number):
            ptx.st_global_b32(address, uint32(number))

        return kernel

    return build(_kernel(make), Nothing(), target="sm_80", cache=False).ptx


def test_an_old_assembler_is_passed_over(ptx, tmp_path, monkeypatch):
    old = tmp_path / "ptxas"
    old.write_text(
        '#!/bin/sh\necho "ptxas k.ptx, line 9; fatal   : Unsupported .version 9.4; current version'
        " is '8.0'\" >&2\nexit 255\n"
    )
    old.chmod(0o755)
    real = assemble.find_tools("ptxas")
    monkeypatch.setattr(
        assemble, "find_tools", lambda name: (str(old), *real) if name == "ptxas" else ()
    )
    cubin, found = assemble.assemble(ptx, target_named("sm_80"))
    assert cubin is not None and found.registers > 0
    monkeypatch.setattr(assemble, "_nvjitlink", lambda ptx, target: ("nvJitLink", None, None))
    monkeypatch.setattr(assemble, "find_tools", lambda name: (str(old),) if name == "ptxas" else ())
    with pytest.raises(AssemblyError, match="Unsupported .version 9.4"):
        assemble.assemble(ptx, target_named("sm_80"))


def test_nvjitlink_gives_the_same_figures_as_ptxas(ptx, monkeypatch):
    pytest.importorskip("cuda.core")
    if not assemble.find_tools("ptxas"):
        pytest.skip("no ptxas to compare with")
    by_ptxas = assemble.assemble(ptx, target_named("sm_80"))[1]
    tools = assemble.find_tools
    monkeypatch.setattr(assemble, "find_tools", lambda name: () if name == "ptxas" else tools(name))
    cubin, by_linker = assemble.assemble(ptx, target_named("sm_80"))
    assert by_linker.assembler == "nvJitLink" and cubin.startswith(b"\x7fELF")
    assert replace(by_linker, assembler=None) == replace(by_ptxas, assembler=None)


def test_without_an_assembler_there_is_ptx_and_no_cubin(ptx, monkeypatch):
    monkeypatch.setattr(assemble, "find_tools", lambda name: ())
    monkeypatch.setattr(assemble, "_nvjitlink", lambda ptx, target: ("nvJitLink", None, None))
    cubin, found = assemble.assemble(ptx, target_named("sm_80"))
    assert cubin is None and found.registers is None
