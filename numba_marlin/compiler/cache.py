"""The disk cache of compiled kernels: a kernel is compiled once per computer. Loading one imports
no compiler and takes milliseconds.

An entry is a file whose name is the SHA-256 of everything that the kernel depends on: the sources
of this project (``package_digest``), the kernel's own file if it is elsewhere, the kernel's name,
configuration, target, compiler, the versions of compiler and assembler, and NUMBA_* settings. An
entry is written to a temporary file and renamed, so that any number of processes may share the
directory. A damaged entry fails its checksum and counts as absent. An experiment whose kernel
imports helpers from other files of its own should build with cache=False while these change.

``cache_directory`` says where the directory is, and whose it must be.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from functools import cache
from pathlib import Path

from numba_marlin.compiler.cache_directory import cache_directory, read_own
from numba_marlin.compiler.compiled import MAGIC, CompiledKernel, from_bytes, to_bytes
from numba_marlin.compiler.tools import find_tools
from numba_marlin.isa.directory import ptx_directory

_TOOLKIT = (
    "nvidia-nvvm",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12",
    "cuda-core",
    "numpy",
)
_DIST_INFO = re.compile(r"(.+?)-([^-]+)\.dist-info$")


def cache_key(
    kernel, config, target: str, compiler: str, versions: dict[str, str], line_info: bool = False
) -> str:
    """Return the SHA-256, in hex, of everything that the compiled kernel depends on."""
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("NUMBA_") and not name.startswith("NUMBA_MARLIN_")
    }
    material = [
        MAGIC.decode(),
        source_key(kernel, config, target, compiler, line_info),
        repr(sorted(versions.items())),
        _tool_identity(),
        repr(sorted(settings.items())),
    ]
    return _digest_of(material)


def source_key(kernel, config, target: str, compiler: str, line_info: bool = False) -> str:
    """Return the SHA-256, in hex, of what a kernel is made from and for: all of ``cache_key`` that
    does not depend on this computer. It is the same on every system."""
    return _digest_of(
        [
            package_digest(),
            _source_digest(kernel.make),
            kernel.name,
            repr(config),
            repr(tuple(kernel.parameters)),
            repr(kernel.threads(config)),
            repr(kernel.shared_bytes(config)),
            target,
            compiler,
            repr(line_info),
        ]
    )


def _digest_of(material):
    return hashlib.sha256("\0".join(material).encode()).hexdigest()


def load(key: str, config) -> CompiledKernel | None:
    """Return the entry; None if it is absent, damaged, somebody else's, or does not match its
    name."""
    directory = cache_directory()
    if directory is None:
        return None
    try:
        compiled = from_bytes(read_own(directory / f"{key}.kernel"), config)
    except (OSError, ValueError):
        return None
    return compiled if compiled.key == key else None


def store(compiled: CompiledKernel) -> None:
    """Write the entry atomically. A full or missing disk is not an error."""
    directory = cache_directory()
    if directory is None:
        return
    import tempfile  # slow to import, and not needed to load a kernel

    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=directory, prefix=".", suffix=".tmp", delete=False
        ) as file:
            temporary = file.name
            file.write(to_bytes(compiled))
        os.replace(temporary, directory / f"{compiled.key}.kernel")
    except OSError:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


@cache
def installed_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return {name: version} of the given distributions that are installed, of Python and of the
    toolkit wheels.

    The versions are read from the names of .dist-info directories, because importlib.metadata would
    take longer than the rest of loading a kernel.
    """
    wanted = {name.replace("-", "_").lower(): name for name in (*distributions, *_TOOLKIT)}
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for directory in sys.path:
        try:
            entries = os.listdir(directory or ".")
        except OSError:
            continue
        for entry in entries:
            match = _DIST_INFO.match(entry)
            name = match and wanted.get(match[1].replace("-", "_").lower())
            if name:
                found.setdefault(name, match[2])
    return dict(sorted(found.items()))


SOURCES = ("kernels", "hardware", "layout", "compiler", "isa")


@cache
def package_digest():
    """Return the SHA-256, in hex, of the sources that a compiled kernel depends on: the kernels,
    the packages from which kernels take numbers and layouts, ``compiler``, ``isa`` and ``ptx/``."""
    package = Path(__file__).resolve().parent.parent
    places = [(package / room, ".py") for room in SOURCES] + [(ptx_directory(), ".ptx")]
    digest = hashlib.sha256()
    for directory, suffix in places:
        for name in _files_under(directory, suffix):
            with open(os.path.join(directory, name), "rb") as file:
                data = file.read()
            digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _files_under(directory, suffix):
    """Return the paths of files with this suffix below ``directory`` and its packages, sorted, with
    slashes on every system."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), directory).replace(os.sep, "/")
        for folder, _, names in os.walk(directory)
        for name in names
        if name.endswith(suffix)
    )


def _source_digest(make):
    """Digest the file that defines the kernel's body, which may be outside this package."""
    code = getattr(make, "__code__", None)
    if code is None:
        return ""
    try:
        source = Path(code.co_filename).read_bytes()
    except OSError:
        source = code.co_code
    return f"{make.__qualname__} {hashlib.sha256(source).hexdigest()}"


@cache
def _tool_identity():
    """Identify the ptxas that would be used, without running it."""
    identities = []
    for path in find_tools("ptxas")[:1]:
        status = os.stat(path)
        identities.append((path, status.st_size, status.st_mtime_ns))
    return repr(identities)
