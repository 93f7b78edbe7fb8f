"""``CompiledKernel``, the result of the compiler, and its format in the disk cache.

A file begins with a line that names the format and its version, and a line with the SHA-256 of the
rest. Sections follow, each of which is ``name length\\n`` and that many bytes. The configuration is
not stored, because the caller of ``load`` has it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any

from numba_marlin.compiler.resources import Resources
from numba_marlin.wording import byte_count

MAGIC = b"numba_marlin kernel 2\n"


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel for one target."""

    #: Name of the kernel.
    kernel: str
    #: Its configuration.
    config: Any
    #: Target, such as "sm_90a".
    target: str
    #: Compiler: "numba-cuda" or "numba-cuda-mlir".
    compiler: str
    #: PTX text.
    ptx: str
    #: Symbol of the entry in ptx and cubin.
    entry: str
    #: Parameters in order: ((name, "u64", "i32" or "tensormap"), ...).
    parameters: tuple[tuple[str, str], ...]
    #: Threads per block.
    threads: int
    #: Dynamic shared memory per block, in bytes.
    shared_bytes: int
    #: Machine code; None if no assembler was found.
    cubin: bytes | None
    #: Resources reported by the assembler.
    resources: Resources
    #: SHA-256, in hex, of everything that it was made from.
    key: str
    #: Versions of compilers and tools.
    versions: dict[str, str]
    #: Whether it was loaded from the cache.
    from_cache: bool = field(default=False, compare=False)
    #: Whether its PTX came with the package (``shipped``); key is then that of the sources alone.
    shipped: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        registers = self.resources.registers
        return (
            f"<CompiledKernel {self.kernel} for {self.target} by {self.compiler}:"
            f" {self.ptx.count(chr(10)):,} lines of PTX"
            f"{'' if registers is None else f', {registers} registers'}, {self.threads} threads,"
            f" {byte_count(self.shared_bytes)} of shared memory>"
        )


def to_bytes(compiled: CompiledKernel) -> bytes:
    resources = compiled.resources
    scalars = {f.name: getattr(resources, f.name) for f in fields(resources)}
    sections = {
        "kernel": compiled.kernel,
        "target": compiled.target,
        "compiler": compiled.compiler,
        "entry": compiled.entry,
        "key": compiled.key,
        "parameters": _lines(dict(compiled.parameters)),
        "threads": compiled.threads,
        "shared_bytes": compiled.shared_bytes,
        "versions": _lines(compiled.versions),
        "resources": _lines({k: v for k, v in scalars.items() if v is not None}),
        "ptx": compiled.ptx,
    }
    parts = []
    for name, value in sections.items():
        data = str(value).encode()
        parts += [f"{name} {len(data)}\n".encode(), data]
    if compiled.cubin is not None:
        parts += [f"cubin {len(compiled.cubin)}\n".encode(), compiled.cubin]
    body = b"".join(parts)
    return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def from_bytes(data: bytes, config) -> CompiledKernel:
    """The inverse of ``to_bytes``. Raises ValueError for another format, and for a truncated or
    changed file."""
    if not data.startswith(MAGIC):
        raise ValueError(f"not a file of the form {MAGIC!r}")
    digest, newline, body = data[len(MAGIC) :].partition(b"\n")
    if not newline or hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("checksum does not match")
    sections, position = {}, 0
    while position < len(body):
        end = body.index(b"\n", position)
        name, length = body[position:end].decode().split(" ")
        position = end + 1 + int(length)
        sections[name] = body[end + 1 : position]
    cubin = sections.pop("cubin", None)
    try:
        text = {name: value.decode() for name, value in sections.items()}
        scalars = {
            name: value if name in ("assembler", "serialized") else int(value)
            for name, value in _pairs(text["resources"])
        }
        resources = Resources(**scalars)
        return CompiledKernel(
            kernel=text["kernel"],
            config=config,
            target=text["target"],
            compiler=text["compiler"],
            ptx=text["ptx"],
            entry=text["entry"],
            parameters=tuple(_pairs(text["parameters"])),
            threads=int(text["threads"]),
            shared_bytes=int(text["shared_bytes"]),
            cubin=cubin,
            resources=resources,
            key=text["key"],
            versions=dict(_pairs(text["versions"])),
            from_cache=True,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a section or a field is missing or unknown: {error}") from error


def _lines(values):
    return "".join(f"{name} {value}\n" for name, value in values.items())


def _pairs(text):
    return [tuple(line.split(" ", 1)) for line in text.splitlines()]
