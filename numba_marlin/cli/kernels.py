"""Kernels on the command line: valid names, the default kernel to show, and its device.

Nothing is imported before an argument is parsed, so that --help stays quick.
"""

from __future__ import annotations

# Formats of both operands of ``block_scaled_matmul`` that some kernel multiplies.
OPERAND_FORMATS = ("nvfp4", "mxfp4", "mxfp8-e4m3")


class Names:
    """The valid values of an argument: the names of all kernels."""

    def __iter__(self):
        from numba_marlin.kernels import registry

        return iter(registry.names())

    def __contains__(self, name: str) -> bool:
        return name in tuple(self)


def shown_first() -> str:
    """The kernel that is shown by default."""
    from numba_marlin.kernels import registry
    from numba_marlin.problems import WEIGHTS

    return next(each.name for each in registry.kernels(WEIGHTS) if each.about.demo.first)


def shown_for(problem) -> str:
    """Return the default kernel, or the next one of the ladder that takes ``problem``; of another
    ladder than the default kernel's, its first that does. Raises ValueError with the reasons if
    none does."""
    from numba_marlin.heuristics import check_takes
    from numba_marlin.kernels import registry

    ladder = registry.names(problem.kind)
    first = shown_first() if shown_first() in ladder else ladder[0]
    for name in ladder[ladder.index(first) :]:
        if not registry.find_kernel(name).takes.refusals(problem):
            return name
    check_takes(first, problem)
    return first


def multiplies_operands(kernel: str | None) -> bool:
    """Whether the kernel multiplies two block-scaled operands."""
    from numba_marlin.kernels import registry
    from numba_marlin.problems import OPERANDS

    return kernel is not None and registry.find_kernel(kernel).kind == OPERANDS


def device_for(name: str | None, kernel: str | None):
    """Return the device called ``name``; for None an H200, or, if that cannot run ``kernel``, the
    fastest device of the table that can. Raises ValueError for a device that lacks the kernel's
    instructions."""
    from numba_marlin import heuristics
    from numba_marlin.hardware import devices

    if name is None:
        usual = devices.device("H200")
        able = kernel is None or heuristics.has_instructions(kernel, usual)
        return usual if able else heuristics.devices_for(kernel)[0]
    device = devices.device(name)
    if kernel is not None and device.source != "model":
        heuristics.check_device(kernel, device)
    return device
