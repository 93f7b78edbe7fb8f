"""From a file to a kernel: PTX as it is, Python by way of a process of its own.

That process (``compiling``) imports the kernel's file and sends back PTX and names; nothing else of
it is believed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from numba_marlin.errors import CapabilityMissing
from numba_marlin.judge.launching import Kernel
from numba_marlin.judge.processes import talk
from numba_marlin.wording import printable

MOST_BYTES = 64 << 20  # of a file


class KernelRefused(ValueError):
    """The kernel's file gives no kernel: it cannot be imported, or does not compile."""


def load(path: str | Path, entry: str | None, types: Sequence, seconds: float) -> Kernel:
    """The kernel of a .ptx or .py file. ``types``: Task.types. OSError, KernelRefused,
    CapabilityMissing without numba-cuda, TooSlow."""
    path = Path(path)
    if path.suffix not in (".py", ".ptx"):
        raise ValueError(f"{path} must be a .py file with a @cuda.jit kernel, or a .ptx file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES >> 20} MiB")
    if path.suffix == ".ptx":
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be PTX, which is text ({error})") from error
        return Kernel(text, entry, entry or path.name, False)
    asked = json.dumps({"path": str(path), "entry": entry, "types": list(types)})
    said = talk([sys.executable, "-m", "numba_marlin.judge.compiling"], asked, seconds)
    if said.get("missing"):
        raise CapabilityMissing(f"{path} needs a compiler, numba-cuda: {said['missing']}")
    if said.get("error"):
        raise KernelRefused(f"{path}: {printable(said['error'])}")
    try:
        found = Kernel(said["text"], said["entry"], said["name"], True, tuple(said["parameters"]))
    except (KeyError, TypeError) as error:
        raise KernelRefused(f"{path} ended the process that compiles it") from error
    if len(found.parameters) != len(types):
        raise KernelRefused(
            f"{found.name}({', '.join(found.parameters)}) has {len(found.parameters)} parameters,"
            f" the task passes {len(types)}"
        )
    return found
