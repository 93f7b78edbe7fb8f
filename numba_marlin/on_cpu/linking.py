"""A compiled kernel and what it is linked with, as one PTX text.

CUDA C++ becomes PTX by NVRTC, and PTX is joined as text; only LTO IR goes through nvJitLink, with
the kernel's own. Machine code is refused. What a program wants of the device's runtime beside
vprintf, which the machine has, is here: ``GRID`` for grid.sync, ``HEAP`` for malloc:
unlike the machine's own, which ends with a run, what it gives outlives the launch, as on a device.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

GRID = """
.global .align 4 .u32 on_cpu_arrived;
.global .align 4 .u32 on_cpu_rounds;
.visible .func (.param .b64 result) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
.reg .b64 %rd<2>;
mov.u64 %rd1, 1;
st.param.b64 [result+0], %rd1;
ret;
}
.visible .func (.param .b32 result) cudaCGSynchronize(.param .b64 grid, .param .b32 flags)
{
.reg .pred %p<4>;
.reg .b32 %r<12>;
.reg .b64 %rd<3>;
bar.sync 0;
mov.u32 %r1, %tid.x;
mov.u32 %r2, %tid.y;
mov.u32 %r3, %tid.z;
or.b32 %r1, %r1, %r2;
or.b32 %r1, %r1, %r3;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra TOGETHER;
mov.u64 %rd1, on_cpu_arrived;
mov.u64 %rd2, on_cpu_rounds;
mov.u32 %r4, %nctaid.x;
mov.u32 %r5, %nctaid.y;
mul.lo.u32 %r4, %r4, %r5;
mov.u32 %r5, %nctaid.z;
mul.lo.u32 %r4, %r4, %r5;
sub.u32 %r4, %r4, 1;
fence.acq_rel.gpu;
ld.relaxed.gpu.global.u32 %r6, [%rd2];
atom.acq_rel.gpu.global.inc.u32 %r7, [%rd1], %r4;
setp.ne.u32 %p2, %r7, %r4;
@%p2 bra WAIT;
atom.acq_rel.gpu.global.add.u32 %r8, [%rd2], 1;
bra.uni TOGETHER;
WAIT:
ld.acquire.gpu.global.u32 %r9, [%rd2];
setp.eq.u32 %p3, %r9, %r6;
@%p3 bra WAIT;
TOGETHER:
fence.acq_rel.gpu;
bar.sync 0;
mov.u32 %r10, 0;
st.param.b32 [result+0], %r10;
ret;
}
"""
"""The last of a grid's blocks to arrive starts the next round; the counter is 0 again then."""

HEAP_BYTES = 1 << 20
HEAP = f"""
.global .align 16 .b8 on_cpu_heap[{HEAP_BYTES}];
.global .align 8 .u64 on_cpu_heap_used;
.visible .func (.param .b64 result) malloc(.param .b64 size)
{{
.reg .pred %p<2>;
.reg .b64 %rd<7>;
ld.param.u64 %rd1, [size];
add.u64 %rd1, %rd1, 15;
and.b64 %rd1, %rd1, -16;
mov.u64 %rd2, on_cpu_heap_used;
atom.global.add.u64 %rd3, [%rd2], %rd1;
add.u64 %rd4, %rd3, %rd1;
mov.u64 %rd5, on_cpu_heap;
add.u64 %rd6, %rd5, %rd3;
setp.gt.u64 %p1, %rd4, {HEAP_BYTES};
selp.b64 %rd6, 0, %rd6, %p1;
st.param.b64 [result+0], %rd6;
ret;
}}
.visible .func free(.param .b64 pointer)
{{
ret;
}}
"""
"""Of a module. Nothing is given back, so that a pointer to what was freed meets nobody else."""

_HEADER = re.compile(r"^\s*\.(version|target|address_size)\b.*$", re.MULTILINE)
_FILE = re.compile(r"(\.(?:file|loc)\s+|\binlined_at\s+)(\d+)(?=\s)")
_FLAG = re.compile(r'i32 2, (!"Debug Info Version")')
_DECLARATION = re.compile(r"\.extern\s+\.func\b[^;{]*;")
_NAME = re.compile(r"([$%\w]+)\s*(?:\([^()]*\)\s*)?$")
_DEFINITION = re.compile(
    r"\.func\s+(?:\.\w+\s+)*(?:\([^()]*\)\s*)?([$%\w]+)\s*(?:\([^()]*\)\s*)?\{"
)


class Unlinkable(RuntimeError):
    """A file that is linked with a kernel has no PTX."""


def ptx_of(library, linker_class) -> str:
    """The text of ``library`` (numba-cuda's CUDACodeLibrary) and of all that it links.
    ``linker_class``: numba-cuda's _Linker."""
    from numba.cuda.cudadrv import nvrtc

    target = library._ensure_cc(None)
    texts, files = [], []
    for item in sorted(library._linking_files, key=str):
        kind = kind_of(item)
        if kind == "ptx":
            texts.append(read(item))
        elif kind == "cu":
            source, name = read(item), Path(name_of(item)).name
            texts.append(nvrtc.compile(source, name, target, lineinfo=True)[0].code.decode())
        elif kind == "ltoir":
            files.append(item)
        else:
            # says if there is no such file or kind
            linker_class(cc=target).add_file_guess_ext(item)
            raise Unlinkable(
                f"{name_of(item)} is machine code ({kind}), which cannot run without a GPU: link"
                " CUDA C++, PTX or LTO IR"
            )
    if files:
        linker = linker_class(cc=target, lto=True, lineinfo=True)
        linker.add_ltoir(library.get_ltoir(cc=target))
        for item in files:
            linker.add_file_guess_ext(item)
        own = [linker.get_linked_ptx().rstrip(b"\0").decode()]
    else:
        own = library.get_asm_strs(cc=target)
    return joined([*own, *texts])


def lto_ir(library, cc=None) -> bytes:
    """In place of CUDACodeLibrary.get_ltoir: code that may be linked with NVRTC's. numba-cuda
    declares another behaviour of the flag of debug information, and nvJitLink wants one."""
    from numba.cuda.cudadrv import nvrtc, nvvm

    cc = library._ensure_cc(cc)
    if cc not in library._ltoir_cache:
        options = dict(library._nvvm_options, arch=nvrtc.get_arch_option(*cc))
        options["gen-lto"] = None
        texts = [_FLAG.sub(r"i32 1, \1", text) for text in library.llvm_strs]
        library._ltoir_cache[cc] = nvvm.compile_ir(texts, **options)
    return library._ltoir_cache[cc]


def kind_of(item) -> str:
    if isinstance(item, str):
        return Path(item).suffix.lstrip(".")
    kind = item.kind
    return (
        str(getattr(kind, "name", kind))
        .lower()
        .removeprefix("cu_jit_input_")
        .replace("nvvm", "ltoir")
    )


def name_of(item) -> str:
    return item if isinstance(item, str) else str(item.name)


def read(item) -> str:
    data = Path(item).read_bytes() if isinstance(item, str) else item.data
    return (data if isinstance(data, str) else data.decode()).rstrip("\0")


def numbered(texts: list[str]) -> list[str]:
    """All but the first text, with numbers of source files that no text before has."""
    found, used = [], 0
    for text in texts:
        renumber = partial(_renumbered, used)
        found.append(_FILE.sub(renumber, text))
        used += max((int(match[2]) for match in _FILE.finditer(text)), default=0)
    return found[1:]


def _renumbered(used: int, match: re.Match) -> str:
    return f"{match[1]}{int(match[2]) + used}"


def joined(texts: list[str]) -> str:
    """One text: the first one's header, each function once, and of the runtime what they
    want."""
    first, *others = texts
    for name, text in (("cudaCG", GRID), ("malloc", HEAP)):
        if any(name in each for each in texts):
            others.insert(0, text)
    if not others:
        return first
    others = numbered([first, *others])
    end = max((match.end() for match in _HEADER.finditer(first)), default=0)
    # what others declare comes before what uses it
    whole = "\n".join([first[:end], *(_HEADER.sub("", text) for text in others), first[end:]])
    defined = set(_DEFINITION.findall(whole))

    def keep(declaration: re.Match) -> str:
        name = _NAME.search(declaration[0].rstrip("; \n"))
        return "" if name and name[1] in defined else declaration[0]

    return _DECLARATION.sub(keep, whole) if defined else whole
