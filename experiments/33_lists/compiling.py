"""CUDA C++ to PTX by NVRTC, with the headers of the toolkit and of CCCL. NotCompiled, with the
compiler's first error, for what it does not take. Needs cuda-bindings, nvidia-cuda-nvrtc and the
headers of nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl."""

import re
from functools import cache
from pathlib import Path

from judging import NotCompiled

STANDARD = "--std=c++17"


@cache
def folders() -> tuple[str, ...]:
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudart")
    if found is None:
        raise SystemExit("the headers of the CUDA runtime are not installed")
    return tuple(folder for folder in (found, f"{found}/cccl") if Path(folder).is_dir())


def ptx_of(source: str, *options: str, arch: str = "compute_90") -> str:
    from cuda.bindings import nvrtc

    def checked(status, *values):
        if int(status):
            raise NotCompiled(first_error(log()) or status.name)
        return values[0] if values else None

    def log() -> str:
        text = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, text)  # fills it
        return text.rstrip(b"\0").decode()

    program = nvrtc.nvrtcCreateProgram(source.encode(), b"case.cu", 0, [], [])[1]
    standard = () if any(each.startswith("--std") for each in options) else (STANDARD,)
    includes = (f"--include-path={folder}" for folder in folders())
    given = [f"--gpu-architecture={arch}", *standard, *includes, *options]
    checked(*nvrtc.nvrtcCompileProgram(program, len(given), [each.encode() for each in given]))
    text = bytes(checked(*nvrtc.nvrtcGetPTXSize(program)))
    checked(*nvrtc.nvrtcGetPTX(program, text))
    nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0").decode()


def first_error(log: str) -> str:
    found = re.search(r"error: *(.*)", log)
    return found[1].strip() if found else ""


def version() -> str:
    from cuda.bindings import nvrtc

    return ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
