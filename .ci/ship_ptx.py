"""Write the PTX that comes with the package (``numba_marlin.compiler.shipped``): whatever
``numba-marlin run``, ``trace`` and ``profile`` would compile by default, with each kernel and
format, and in the examples of their --help.

    python .ci/ship_ptx.py

It compiles for two minutes, with the default compiler. Run it after every change of the rooms that
``compiler.cache.SOURCES`` lists, and of ``ptx/``: PTX of other sources is not used, and
``tests/test_shipped.py`` fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import shlex
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "numba_marlin" / "data" / "shipped"
# What the verbs would compile on a computer without a GPU is what is shipped.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(ROOT))

from numba_marlin import compiler
from numba_marlin.cli import main as cli
from numba_marlin.cli import profile, run, trace
from numba_marlin.cli.kernels import OPERAND_FORMATS
from numba_marlin.compiler import cache
from numba_marlin.execution import plan
from numba_marlin.kernels import registry
from numba_marlin.problems import ACTIVATIONS, EXPERTS, OPERANDS, WEIGHTS

# a file, or a GPU
NEEDS_MORE = {"--input", "--open", "--compare", "--try"}


class Asked(BaseException):
    """Raised in place of the first compilation of a verb: what it asks for."""

    def __init__(self, *request):
        super().__init__(request)
        self.request = request


def commands() -> list[list[str]]:
    """What must run without a compiler."""
    wanted = [["run"], ["trace"], ["profile", "--demo"]]
    kinds = (WEIGHTS, ACTIVATIONS, EXPERTS)
    wanted += [["run", "--kernel", name] for name in registry.names(*kinds)]
    wanted += [
        ["run", "--format", format, "--kernel", kernel.name]
        for format in OPERAND_FORMATS
        for kernel in registry.kernels(OPERANDS)
        if format in getattr(kernel.takes, "formats", ())
    ]
    wanted += [
        [verb, "--demo", "--kernel", name]
        for verb in ("trace", "profile")
        for name in registry.names()
    ]
    for verb in (run, trace, profile):
        # an example, and after two spaces what it is for
        for line in re.sub(r"\\\n *", "", verb.EXAMPLES).splitlines():
            words = shlex.split(re.split(" {2,}", line.strip())[0])
            if words[:1] == ["numba-marlin"] and not set(words) & NEEDS_MORE:
                wanted.append(words[1:])
    return wanted


def requests() -> dict[tuple, list[str]]:
    """(kernel, config, target, line_info) -> the commands that ask for it first."""
    found: dict[tuple, list[str]] = {}
    real, real_load = compiler.build, compiler.load

    def ask(kernel, config, target="sm_90a", compiler="numba-cuda", cache=True, line_info=False):
        raise Asked(kernel.name, config, target, line_info)

    compiler.build, compiler.load = ask, lambda *_: None  # whatever the disk cache has
    plan.held.cache_clear()  # and this process
    try:
        for argv in commands():
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    cli.main(argv)
                raise SystemExit(
                    f"numba-marlin {shlex.join(argv)} compiles nothing:\n{said.getvalue()}"
                )
            except Asked as asked:
                for request in (asked.request, *behind(argv, *asked.request)):
                    named = found.setdefault(request, [])
                    if shlex.join(argv) not in named:
                        named.append(shlex.join(argv))
    finally:
        compiler.build, compiler.load = real, real_load
    return found


def behind(argv: list[str], name: str, config, target: str, line_info: bool) -> list[tuple]:
    """The requests of the passes behind a kernel, which ``run`` compiles after it."""
    device = plan.machine_for(name)
    return [
        (each.definition.name, each.config, plan.target_for(each.definition, device), False)
        for each in registry.find_kernel(name).behind(config)
        if argv[0] == "run"
    ]


def made() -> tuple[dict[str, Any], dict[str, str]]:
    """The index and {name: PTX}."""
    rows, texts, versions = [], {}, {}
    for (name, config, target, line_info), wanted in requests().items():
        kernel = registry.find_definition(name)
        compiled = compiler.build(kernel, config, target=target, line_info=line_info)
        if compiled.shipped:
            raise SystemExit("no compiler is installed: pip install -e '.[cu13]'")
        versions = compiled.versions
        digest = hashlib.sha256(compiled.ptx.encode()).hexdigest()[:12]
        file = f"{name}.{target}.{'lines.' if line_info else ''}{digest}.ptx"
        texts[file] = compiled.ptx
        rows.append(
            {
                "kernel": name,
                "target": target,
                "line_info": line_info,
                "commands": wanted,
                "config": dataclasses.asdict(config),
                "resources": dataclasses.asdict(compiled.resources),
                "ptx": file,
                "key": cache.source_key(kernel, config, target, compiled.compiler, line_info),
            }
        )
    return {"sources": cache.package_digest(), "versions": versions, "kernels": rows}, texts


def write(index: dict[str, Any], texts: dict[str, str]) -> None:
    TARGET.mkdir(exist_ok=True)
    text = json.dumps(index, indent=1) + "\n"
    (TARGET / "index.json").write_text(text, encoding="utf-8")
    with zipfile.ZipFile(TARGET / "ptx.zip", "w") as archive:
        for name, text in sorted(texts.items()):
            # with one date, so that the same PTX gives the same file
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    write(*made())
