"""Flags of NVRTC and nvcc, and targets: the kernels of ``features`` that need no header and are
right without a flag, compiled once more with it. By nvcc, which takes a second a kernel, every
tenth.

What the compiler refuses for a target or a standard is left out, and said. Flags that are to change
the last bits of floats (``FLOATS``) run the kernels whose values do not depend on them.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import compiling
import cuda_cpp
from features import FEATURES
from features.feature import Feature
from judging import Case, Found, NotCompiled, judged

sys.path.append(str(Path(__file__).resolve().parents[1] / "31_programs"))
from building import Missing, nvcc

NVRTC = (
    *("-G", "-lineinfo", "-G -dopt=on", "-G -lineinfo", "-rdc=true", "-rdc=true -G", "--restrict"),
    *("-fmad=false", "-maxrregcount=32", "--extra-device-vectorization", "-default-device"),
    *("--Ofast-compile=max", "--Ofast-compile=min", "--minimal", "-use_fast_math", "-ftz=true"),
    *("-prec-div=false -prec-sqrt=false", "--std=c++11", "--std=c++14", "--std=c++20"),
)
FLOATS = ("-use_fast_math", "-ftz=true", "-prec-div=false -prec-sqrt=false")
TARGETS = "75 80 86 87 88 89 90 90a 100 100a 100f 103 103a 110 120 120a 121".split()
NVCC = (
    *("-O0", "-O1", "-O2", "-O3", "-Xcicc -O0", "-Xcicc -O1", "-G", "-lineinfo", "-rdc=true"),
    *("-use_fast_math", "-Ofc max", "-std=c++20"),
)
EVERY = 10  # of the features, by nvcc
WORST = ("wrong", "report", "refused")


def versions(given) -> dict[str, str]:
    return cuda_cpp.versions(given)


def cases(given) -> Iterator[Case]:
    for flags in NVRTC:
        yield Case("NVRTC", flags, partial(run, flags, by_nvrtc(flags)))
    for target in TARGETS:
        yield Case("NVRTC, target", f"compute_{target}", partial(run, "", by_nvrtc("", target)))
    for flags in NVCC:
        yield Case("nvcc", flags, partial(run, flags, partial(by_nvcc, flags), EVERY))


@cache
def kernels() -> tuple[Feature, ...]:
    """Those that can be compiled with any flag, and are right without one."""
    found = [each for each in FEATURES if "#include" not in each.source and not each.options]
    return tuple(each for each in found if judged(partial(cuda_cpp.run, each)).outcome == "right")


def by_nvrtc(flags: str, target: str = "") -> Callable[[Feature], str]:
    def text(feature: Feature) -> str:
        arch = f"compute_{target}" if target else feature.arch
        return compiling.ptx_of(feature.source, *flags.split(), arch=arch)

    return text


def by_nvcc(flags: str, feature: Feature) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, text = Path(folder, "case.cu"), Path(folder, "case.ptx")
        source.write_text(feature.source, encoding="utf-8")
        try:
            nvcc("-ptx", f"-arch={feature.arch}", *flags.split(), "-o", str(text), str(source))
        except Missing as error:
            raise NotCompiled(str(error)) from error
        return text.read_text(encoding="utf-8")


def run(flags: str, text: Callable[[Feature], str], every: int = 1) -> Found:
    """All of them: the worst outcome, and how many had which."""
    others, counts, instructions = [], Counter(), 0
    for feature in kernels()[::every]:
        if flags in FLOATS and feature.group in ("functions", "numbers"):
            continue
        found = judged(lambda: cuda_cpp.launched(feature, text(feature)))
        counts[found.outcome] += 1
        instructions += found.instructions
        if found.outcome in WORST:
            others.append(f"{feature.name} ({found.outcome}: {found.said})")
    worst = next((each for each in WORST if counts[each]), "right")
    said = f"{counts['right']} of {sum(counts.values()) - counts['not compiled']} kernels right"
    left = counts["not compiled"]
    said += f", {left} not compiled" if left else ""
    return Found(worst, "; ".join([said, *others]), instructions)
