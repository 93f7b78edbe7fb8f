"""A CUDA C++ program as a shared library that holds its PTX, and the CUDA runtime that it finds.

``build`` has nvcc compile a program as it is, host code too, but for the sizes that ``programs``
makes smaller, in a temporary copy. The library's CUDA functions are left open: ``build`` makes a
second library that has every one of them and hands each call to the function of Python that
``runtime`` puts into it. Missing, with the compiler's first error, where a header or a library is
not there. Needs nvcc, its headers and g++.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Functions of CUDA's libraries, and of those for pictures, which are not here either.
OF_CUDA = re.compile(
    r"^(__cuda|cuda|cu[A-Z]|cublas|curand|cufft|cusparse|cusolver|nvtx|nvrtc|gl[A-Z]|glut|glew)\w*$"
)
SLOTS = 24  # integers of a call: six in registers, the rest from the stack
HOOK = """#include <cuda_runtime_api.h>
extern "C" long (*numba_marlin_hook)(const char *, long *) = nullptr;
extern "C" void numba_marlin_properties(cudaDeviceProp *found, const long *of) {
  *found = cudaDeviceProp();
  char name[] = "PTX machine";
  for (int i = 0; i < int(sizeof name); i++) found->name[i] = name[i];
  found->totalGlobalMem = of[0];
  found->sharedMemPerBlock = of[1];
  found->sharedMemPerBlockOptin = of[2];
  found->sharedMemPerMultiprocessor = of[3];
  found->regsPerBlock = found->regsPerMultiprocessor = of[4];
  found->warpSize = of[5];
  found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = of[6];
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 2147483647;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->maxThreadsPerMultiProcessor = of[7];
  found->multiProcessorCount = of[8];
  found->major = of[9];
  found->minor = of[10];
  found->totalConstMem = of[11];
  found->textureAlignment = found->texturePitchAlignment = 512;
  found->memPitch = 2147483647;
  found->unifiedAddressing = found->managedMemory = found->concurrentManagedAccess = 1;
  found->canMapHostMemory = found->cooperativeLaunch = found->concurrentKernels = 1;
  found->asyncEngineCount = 1;
  found->l2CacheSize = 1 << 20;
}
"""


class Missing(Exception):
    """What a program needs is not here."""


@dataclass(frozen=True)
class Built:
    program: Path
    runtime: Path


def toolkit() -> Path:
    """Where the wheels of CUDA lie, or the toolkit whose nvcc is on PATH."""
    for folder in sys.path:
        for found in Path(folder or ".").glob("nvidia/cu*/bin/nvcc"):
            return found.parent.parent
    on_path = shutil.which("nvcc")
    if on_path:
        return Path(on_path).resolve().parent.parent
    raise Missing("no nvcc: pip install nvidia-cuda-nvcc nvidia-cuda-cccl nvidia-cuda-runtime")


def nvcc(*options: str) -> None:
    cuda = toolkit()
    command = [str(cuda / "bin/nvcc"), "-std=c++17", "-I", str(cuda / "include"), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise Missing(re.sub(r"^.*?(fatal )?error[:\s]+", "", errors[0].strip())[:160])


def build(sources: list[Path], includes: list[Path], options: tuple[str, ...], to: Path) -> Built:
    """The program of ``sources`` in folder ``to``."""
    program, runtime = to / "program.so", to / "runtime.so"
    nvcc(
        *("-gencode", "arch=compute_90,code=compute_90", "-O3", "-lineinfo", "-no-compress"),
        *("-shared", "-Xcompiler", "-fPIC,-w", "-w", "--cudart", "none", *options),
        *(part for folder in includes for part in ("-I", str(folder))),
        *("-o", str(program), *map(str, sources)),
    )
    lacking = subprocess.run(
        ["nm", "-D", "--undefined-only", str(program)], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1].partition("@")[0] for line in lacking.stdout.splitlines()]
    names = [name for name in names if OF_CUDA.match(name)]
    slots = [f"long a{number}" for number in range(SLOTS)]
    given = ", ".join(slot.removeprefix("long ") for slot in slots)
    code = to / "runtime.cc"
    code.write_text(
        HOOK
        + "".join(
            f'extern "C" long call_{name}({", ".join(slots)}) asm("{name}");\n'
            f"long call_{name}({', '.join(slots)}) {{ long all[] = {{{given}}};"
            f' return numba_marlin_hook("{name}", all); }}\n'
            for name in names
        ),
        encoding="utf-8",
    )
    command = ["g++", "-shared", "-fPIC", "-w", f"-I{toolkit() / 'include'}", "-o", str(runtime)]
    subprocess.run([*command, str(code)], check=True, capture_output=True)
    return Built(program, runtime)
