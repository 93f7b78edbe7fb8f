"""Assembles PTX to a cubin without a GPU, and reports its resources.

Assemblers are tried in this order: the ptxas of the pip wheels (because libnvvm of the same wheels
may emit PTX that is too new for another ptxas), the ptxas of CUDA_HOME and of PATH, and nvJitLink
through cuda.core. An assembler that is too old for the PTX, or does not support the target, is
skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from numba_marlin.compiler.errors import AssemblyError
from numba_marlin.compiler.resources import Resources, parse_log
from numba_marlin.compiler.tools import find_tools
from numba_marlin.hardware.targets import Target

_TEXT = {"capture_output": True, "text": True, "errors": "replace"}
_OWN_VERSION = re.compile(r"Unsupported \.version.*current version is '([\d.]+)'")
_TOO_OLD = re.compile(
    r"Unsupported \.version|not defined for option 'gpu-name'|unsupported toolchain", re.IGNORECASE
)


def assemble(ptx: str, target: Target) -> tuple[bytes | None, Resources]:
    """Return (cubin, resources of its kernel); (None, Resources()) if there is no assembler. Raises
    AssemblyError, whose message contains the logs, if no assembler accepts the PTX."""
    logs = []
    for assembler in [*(_ptxas(path) for path in find_tools("ptxas")), _nvjitlink]:
        name, cubin, log = assembler(ptx, target)
        if cubin is not None:
            return cubin, Resources(assembler=name, **parse_log(log))
        if log is not None:
            logs.append(f"{name}: {log.strip()}")
            if not _TOO_OLD.search(log):
                break
    if logs:
        raise AssemblyError(f"no assembler accepts this PTX for {target.name}:\n" + "\n".join(logs))
    return None, Resources()


def _ptxas(path):
    """Return a function that runs one ptxas: (ptx, target) -> (name, cubin or None, log).

    A compiler that is one release newer than ptxas may declare a newer PTX version without using
    anything new. Such PTX is assembled again with the version that ptxas supports. (nvJitLink
    accepts such PTX too, but as a part of a larger program: it ignores setmaxnreg and serialises
    wgmma.)
    """

    def run(ptx, target):
        name, cubin, log = once(ptx, target)
        own = _OWN_VERSION.search(log)
        return (
            once(
                re.sub(r"^\.version .*$", f".version {own[1]}", ptx, count=1, flags=re.MULTILINE),
                target,
            )
            if own
            else (name, cubin, log)
        )

    def once(ptx, target):
        with tempfile.TemporaryDirectory(prefix="numba_marlin_") as directory:
            source, cubin = Path(directory, "kernel.ptx"), Path(directory, "kernel.cubin")
            source.write_text(ptx, encoding="utf-8")
            done = subprocess.run(
                [path, "-v", f"-arch={target.name}", str(source), "-o", str(cubin)],
                check=False,
                **_TEXT,
            )
            name = f"ptxas {tool_version(path)}"
            return (
                (name, cubin.read_bytes(), done.stderr)
                if done.returncode == 0
                else (name, None, done.stderr + done.stdout)
            )

    return run


def _nvjitlink(ptx, target):
    """Return (name, cubin or None, log or None); the log is None if nvJitLink is not available."""
    try:
        from cuda.core import Linker, LinkerOptions, ObjectCode
    except ImportError:
        return "nvJitLink", None, None
    try:
        linker = Linker(
            ObjectCode.from_ptx(ptx.encode()), options=LinkerOptions(arch=target.name, verbose=True)
        )
        return "nvJitLink", bytes(linker.link("cubin").code), linker.get_info_log()
    # The type of the error depends on the release, also for a missing library. Only the message of
    # a rejection quotes the assembler.
    except Exception as error:
        return "nvJitLink", None, str(error) if "ptxas" in str(error) else None


@cache
def tool_version(path: str) -> str:
    """The version that ``--version`` prints, such as "13.4.92"; "unknown" if it prints none."""
    done = subprocess.run([path, "--version"], **_TEXT)
    match = re.search(r"\bV(\d+(?:\.\d+)+)", done.stdout)
    return match[1] if match else "unknown"


def disassemble(cubin: bytes) -> str | None:
    """Return the SASS listing by the first nvdisasm that supports the cubin; None if none does."""
    for path in find_tools("nvdisasm"):
        with tempfile.NamedTemporaryFile(
            suffix=".cubin", prefix="numba_marlin_", delete=False
        ) as file:
            file.write(cubin)
        try:
            done = subprocess.run([path, "-c", file.name], **_TEXT)
        finally:
            os.unlink(file.name)
        if done.returncode == 0:
            return done.stdout
    return None
