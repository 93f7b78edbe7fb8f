"""PTX files of other projects: each text is read, and the instructions of every kernel in it are
bound. A row is a project. What ptxas refuses as well is "not compiled"; the others that the machine
does not take are "refused", and counted by what it says.

``given.texts``: NAME=FOLDER, each with files *.ptx in it or below.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from beside import script
from judging import CHECKS, Case, Found, bound, judged

from numba_marlin.emulator import Machine

building = script("31_programs/building.py")
TARGET = re.compile(r"^\s*\.target\s+(sm_\d+[af]?)", re.MULTILINE)
OLDEST = 75  # that ptxas still makes code for
WHERE = re.compile(r" \(in kernel .*| PTX line .*")
MOST_REASONS = 12


def versions(given) -> dict[str, str]:
    done = subprocess.run([ptxas(), "--version"], capture_output=True, text=True, check=True)
    return {"ptxas": re.search(r"V([\d.]+)", done.stdout)[1]}


def cases(given) -> Iterator[Case]:
    for each in given.texts:
        name, _, folder = each.partition("=")
        yield Case("", name, partial(run, sorted(Path(folder).rglob("*.ptx"))))


def run(files: list[Path]) -> Found:
    counts, reasons = Counter(), Counter()
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        found = judged(partial(read, text))
        outcome = found.outcome
        if outcome != "read":
            outcome = "refused" if taken(text) else "not compiled"
        counts[outcome] += 1
        if outcome == "refused":
            textures = "no textures" in found.said
            reasons["textures and surfaces" if textures else WHERE.sub("", found.said)] += 1
    worst = next((each for each in ("refused", "not compiled") if counts[each]), "read")
    said = "; ".join(f"{count} x {why}" for why, count in reasons.most_common(MOST_REASONS))
    return Found(worst, said, outcomes=dict(counts))


def read(text: str) -> Found:
    machine = Machine(text, checks=CHECKS)
    for entry in machine.entries:
        bound(machine, entry)
    return Found("read")


def taken(text: str) -> bool:
    """By ptxas."""
    target = TARGET.search(text)
    arch = target[1] if target and int(re.sub(r"\D", "", target[1])) >= OLDEST else f"sm_{OLDEST}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.ptx")
        path.write_text(text, encoding="utf-8")
        command = [ptxas(), f"-arch={arch}", "-c", "-o", str(Path(folder, "case")), str(path)]
        return not subprocess.run(command, capture_output=True).returncode


def ptxas() -> str:
    return str(building.toolkit() / "bin" / "ptxas")
