"""Edited copies of the faithful kernel: its own sources with a few lines exchanged, executed as
modules of another name. No file is copied and nothing of the package is changed.

``edited_kernel(name, edits)`` -> KernelDefinition. An edit that does not find its lines as often as
it says is a ValueError, so that no ablation outlives the lines it was written for.
"""

import difflib
import hashlib
import linecache
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from numba_marlin.kernels.ampere import KERNEL
from numba_marlin.kernels.language.definition import KernelDefinition

PACKAGE = "numba_marlin.kernels.ampere"
MODULES = ("config", "schedule", "load", "output", "kernel")  # none imports one behind it


@dataclass(frozen=True)
class Edit:
    """In a module of the kernel's package, every ``old`` becomes ``new``; there are ``times``."""

    module: str
    old: str
    new: str
    times: int = 1


def sources(edits: tuple[Edit, ...] = ()) -> dict[str, str]:
    """{module: its text after the edits, which are applied in their order}"""
    folder = Path(find_spec(PACKAGE).origin).parent
    found = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    for edit in edits:
        times = found[edit.module].count(edit.old)
        if times != edit.times:
            raise ValueError(
                f"{edit.module}.py of {PACKAGE} has {times} times, not {edit.times}:\n{edit.old}"
            )
        found[edit.module] = found[edit.module].replace(edit.old, edit.new)
    return found


def difference(edits: tuple[Edit, ...]) -> str:
    """What the edits change, as a unified diff."""
    before, after = sources(), sources(edits)
    return "".join(
        line
        for name in MODULES
        for line in difflib.unified_diff(
            before[name].splitlines(True),
            after[name].splitlines(True),
            f"ampere/{name}.py",
            f"ampere/{name}.py, edited",
            n=1,
        )
    )


def edited_kernel(name: str, edits: tuple[Edit, ...]) -> KernelDefinition:
    """The faithful kernel with these edits, as a kernel called ``name``. Its configuration's type
    is its own: ``config_type(**asdict(config))`` of one of ``AmpereConfig``."""
    texts = sources(edits)
    package = f"ablation.{name}"
    modules = {}
    for module, text in texts.items():
        for other in MODULES:
            text = text.replace(f"from {PACKAGE}.{other} import", f"from {package}.{other} import")
        modules[module] = _executed(f"{package}.{module}", text)
    kernel, config = modules["kernel"], modules["config"]
    # The cache of compiled kernels knows the file of ``make`` alone, and there is none.
    digest = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()
    kernel.make.__qualname__ = f"make {digest}"
    return replace(
        KERNEL,
        name=name,
        summary=f"{KERNEL.name}, edited",
        config_type=config.AmpereConfig,
        make=kernel.make,
        threads=lambda _: config.THREADS,
        about=replace(KERNEL.about, trials=(), demo=None),
    )


def _executed(name: str, text: str) -> ModuleType:
    """The module, in sys.modules, where dataclasses and other modules look for it; its lines in
    linecache, where compilers do."""
    module, file = ModuleType(name), f"<{name}>"
    sys.modules[name] = module
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    return module
