"""Errors of compilation and assembly, besides those of wrong arguments (ValueError, TypeError)."""

from numba_marlin.errors import CapabilityMissing


class MissingCompiler(CapabilityMissing):
    """A compiler is not installed. The message contains the command that installs it."""


class AssemblyError(RuntimeError):
    """No assembler accepts the PTX. The message contains their logs."""
