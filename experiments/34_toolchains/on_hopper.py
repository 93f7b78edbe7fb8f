"""CUTLASS's examples of CUDA C++ for Hopper, host code and all, from a checkout of NVIDIA/cutlass:
built as experiment 31 builds programs, with their own check of their results. CUTLASS: the
checkout's folder. Only sizes are chosen, by options that the programs have."""

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version as installed
from pathlib import Path

from recording import Missing, Program

CHECKOUT = Path(os.environ.get("CUTLASS", "cutlass"))
BESIDE = Path(__file__).resolve().parent.parent / "31_programs"
SIZE = ("--m=512", "--n=256", "--k=64", "--iterations=0")
# folder, file, options
EXAMPLES = (
    ("48_hopper_warp_specialized_gemm", "48_hopper_warp_specialized_gemm.cu", SIZE),
    ("50_hopper_gemm_with_epilogue_swizzle", "50_hopper_gemm_with_epilogue_swizzle.cu", SIZE),
    ("54_hopper_fp8_warp_specialized_gemm", "54_hopper_fp8_warp_specialized_gemm.cu", SIZE),
)
INCLUDES = ("include", "tools/util/include", "examples/common")


def version() -> str:
    named = os.environ.get("CUTLASS_COMMIT", "")
    command = ["git", "-C", str(CHECKOUT), "rev-parse", "--short", "HEAD"]
    commit = named or subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return f"cutlass at {commit}, nvcc {installed('nvidia-cuda-nvcc')}"


def building():
    """Experiment 31's module; wgmma wants sm_90a."""
    spec = importlib.util.spec_from_file_location("building", BESIDE / "building.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    plain = made.nvcc
    made.nvcc = lambda *options: plain(
        *(each.replace("compute_90", "compute_90a") for each in options)
    )
    return made


def headers() -> list[Path]:
    """Of CUDA's wheels, wherever they are."""
    found = [each for folder in sys.path for each in Path(folder or ".").glob("nvidia/cu*/include")]
    return [*(each / "cccl" for each in found), *found]


def cases():
    for folder, file, options in EXAMPLES:
        yield file.removesuffix(".cu"), "sm_90a", lambda case, of=(folder, file, options): of


def write(case, place: Path, found: tuple) -> None:
    """Builds it, and leaves a Program for ``measure``."""
    folder, file, options = found
    source = CHECKOUT / "examples" / folder / file
    if not source.is_file():
        raise Missing(f"{source} is not there")
    includes = [*headers(), *(CHECKOUT / each for each in INCLUDES), source.parent]
    to = place / case.name
    to.mkdir(parents=True, exist_ok=True)
    maker = building()
    try:
        maker.build([source], includes, ("--expt-relaxed-constexpr",), to)
    except maker.Missing as error:
        raise Missing(str(error)) from None
    Program(case.toolchain, case.name, case.target, case.version, str(to), options).write(place)
