"""Assembles PTX to a cubin without a GPU, and reports its resources.

``assemble(ptx, target) -> (cubin | None, Resources)``. Assemblers are tried in this order: the
ptxas of the pip wheels (libnvvm of the same wheels may emit PTX newer than another ptxas takes),
the ptxas of CUDA_HOME and of PATH, nvJitLink through cuda.core. An assembler that is too old
for the PTX, or does not support the target, is skipped. Without any, cubin is None; if all reject
the PTX, AssemblyError is raised.
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
        raise AssemblyError(f"no assembler takes this PTX for {target.name}:\n" + "\n".join(logs))
    return None, Resources()


def _ptxas(path):
    """A ptxas. A compiler one release ahead of it may stamp its PTX with a newer version without
    using anything new; such PTX is retried with the assembler's own version. (nvJitLink accepts it
    too, but
    as part of a larger program: it ignores setmaxnreg and serialises wgmma.)
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
    try:
        from cuda.core import Linker, LinkerOptions, ObjectCode
    except ImportError:
        return "nvJitLink", None, None
    try:
        linker = Linker(
            ObjectCode.from_ptx(ptx.encode()), options=LinkerOptions(arch=target.name, verbose=True)
        )
        return "nvJitLink", bytes(linker.link("cubin").code), linker.get_info_log()
    # the error's type depends on the release, as for a missing library; only a rejection quotes the
    # assembler
    except Exception as error:
        return "nvJitLink", None, str(error) if "ptxas" in str(error) else None


@cache
def tool_version(path: str) -> str:
    """Such as "13.4.92", from ``--version``; "unknown" if it prints no version."""
    done = subprocess.run([path, "--version"], **_TEXT)
    match = re.search(r"\bV(\d+(?:\.\d+)+)", done.stdout)
    return match[1] if match else "unknown"


def disassemble(cubin: bytes) -> str | None:
    """The SASS listing of the first nvdisasm that supports the cubin; None without one."""
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
