"""Errors of compilation and assembly, besides those of wrong arguments (ValueError, TypeError)."""

import sys

from numba_marlin.errors import CapabilityMissing


class MissingCompiler(CapabilityMissing):
    """A compiler is not installed. The message contains the command that installs it."""


class AssemblyError(RuntimeError):
    """No assembler accepts the PTX. The message contains their logs."""


def installed_with(command: str) -> str:
    """What to do about a missing compiler, which ``command`` installs where there is one."""
    if sys.platform == "darwin":
        return "there is no CUDA for macOS: kernels are compiled on Linux and Windows"
    return f"install it with {command}"
