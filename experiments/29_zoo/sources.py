"""CUDA C++ to PTX without a GPU, and where the sources are: source distributions from PyPI,
unpacked into the folder that the variable ZOO_SOURCES names, or installed packages.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

from launches import Missing


def unpacked(package: str) -> Path:
    """The folder of an unpacked source distribution, "auto_gptq" for auto_gptq-0.7.1."""
    folder = os.environ.get("ZOO_SOURCES")
    if folder is None:
        raise Missing(f"ZOO_SOURCES names no folder with the source distribution of {package}")
    found = sorted(path for path in Path(folder).glob(f"{package}-*") if path.is_dir())
    if not found:
        raise Missing(f"no source distribution of {package} in ZOO_SOURCES")
    return found[-1]


def nvcc() -> Path:
    """nvcc on PATH, or of the wheel nvidia-cuda-nvcc."""
    on_path = shutil.which("nvcc")
    if on_path:
        return Path(on_path)
    for folder in sys.path:
        for wheel in Path(folder or ".").glob("nvidia/cu*/bin/nvcc"):
            return wheel
    raise Missing("no nvcc: pip install nvidia-cuda-nvcc nvidia-cuda-cccl nvidia-cuda-runtime")


def compiler() -> str:
    try:
        return f"nvcc {installed('nvidia-cuda-nvcc')}"
    except PackageNotFoundError:
        return "nvcc"


def ptx_of(
    source: Path | str, target: str, *options: str, headers: dict[str, str] | None = None
) -> str:
    """The PTX of a .cu file, or of the text of one. headers: files that its distribution lacks."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (headers or {}).items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if isinstance(source, str):
            text, source = source, Path(folder, "made.cu")
            source.write_text(text, encoding="utf-8")
        out = Path(folder, "out.ptx")
        command = [
            str(nvcc()),
            "-ptx",
            "-O3",
            "-std=c++17",
            f"-arch={target.replace('sm', 'compute')}",
        ]
        command += ["-lineinfo", "--expt-relaxed-constexpr", "-diag-suppress", "39"]
        command += [*options, "-I", folder, "-o", str(out), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"nvcc: {done.stderr.strip()[-400:]}")
        return out.read_text(encoding="utf-8")


def entry_of(ptx: str, *parts: str) -> str:
    """The kernel whose (mangled) name contains every one of ``parts``."""
    names = [
        line.split(".entry", 1)[1].split("(")[0].strip()
        for line in ptx.splitlines()
        if ".entry" in line
    ]
    (found,) = [name for name in names if all(part in name for part in parts)]
    return found
