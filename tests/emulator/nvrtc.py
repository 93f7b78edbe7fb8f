"""CUDA C++ to PTX with NVRTC, which needs no GPU. Skips where there is none, or no headers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "foreign"


@cache
def ptx_of(name: str, arch: str = "sm_80") -> str:
    """PTX of foreign/``name``.cu."""
    source = (SOURCES / f"{name}.cu").read_text(encoding="utf-8")
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    if "#include" in source:
        from cuda.pathfinder import find_nvidia_header_directory

        directory = find_nvidia_header_directory("cudart")
        if directory is None:
            pytest.skip("the CUDA runtime's headers are not installed")
        # CUDA 12 has crt/mma.h, which mma.h includes, in the wheel of nvcc
        folders = [directory, f"{directory}/cccl", f"{directory}/../../cuda_nvcc/include"]
        if not any(Path(folder, "crt/mma.h").is_file() for folder in folders):
            pytest.skip("the headers that mma.h includes are not installed")
        options += [f"--include-path={folder}" for folder in folders]
    return compiled(source, *options, name=f"{name}.cu")


def compiled(source: str, *options: str, name: str = "source.cu") -> str:
    """PTX of CUDA C++."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with numba-marlin[cu13]")
    try:
        program = checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    except RuntimeError as error:  # the library itself is missing
        pytest.skip(f"NVRTC: {error}")
    if (
        nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        != nvrtc.nvrtcResult.NVRTC_SUCCESS
    ):
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise AssertionError(log.decode())
    text = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
    checked(nvrtc.nvrtcGetPTX(program, text))
    return text.rstrip(b"\0 ").decode()


def checked(result):
    status, *values = result
    if int(status):
        raise RuntimeError(str(status))
    return values[0] if values else None
