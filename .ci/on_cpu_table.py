"""The table of features in docs/on_cpu.md: what programs of numba.cuda do under the switch.

    python .ci/on_cpu_table.py

The programs are those of features.py and device_features.py in tests/on_cpu; each is run here with
both compilers, each of them in a process of its own, and the page says what came of it.
"""

import importlib
import json
import subprocess
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.on_cpu import device_features, features  # noqa: F401, each registers its own
from tests.on_cpu.feature import FEATURES, outcome

PAGE = ROOT / "docs" / "on_cpu.md"
BEGIN, END = "<!-- features -->", "<!-- end:features -->"
COMPILERS = {"numba-cuda": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.cuda"}
LONGEST = 130  # characters of a message


def outcomes(module: str) -> dict[str, tuple[str, str]]:
    """Of every feature, with the compiler whose ``cuda`` is ``module``."""
    from numba_marlin import on_cpu

    warnings.simplefilter("ignore")
    with on_cpu.cuda():
        cuda = importlib.import_module(module)
        return {name: outcome(name, cuda) for name in FEATURES}


def elsewhere(module: str) -> dict[str, tuple[str, str]]:
    done = subprocess.run(
        [sys.executable, __file__, module], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(found: dict[str, dict]) -> list[str]:
    lines = [f"| feature | {' | '.join(COMPILERS)} |", "|---|" + len(COMPILERS) * "---|"]
    said = []
    for name in FEATURES:
        kinds = [found[compiler][name][0] for compiler in COMPILERS]
        lines.append(f"| {name} | {' | '.join(kinds)} |")
        for compiler, kind in zip(COMPILERS, kinds):
            if kind != "pass":
                message = found[compiler][name][1].replace("|", "\\|")
                cut = message if len(message) <= LONGEST else message[:LONGEST] + " ..."
                said.append(f"- {name}, {compiler}: `{cut.replace('`', '')}`")
    return [*lines, "", *said]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(outcomes(sys.argv[1])))
    else:
        found = {compiler: elsewhere(module) for compiler, module in COMPILERS.items()}
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, tail = rest.partition(END)
        body = "\n".join([BEGIN, *table(found), END])
        PAGE.write_text(f"{head}{body}{tail}", encoding="utf-8")
