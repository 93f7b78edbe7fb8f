"""results.jsonl -> what README.md says between its markers: mutants by cell and by kind, the proofs
that were needed, and who survived."""

import re
import sys
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from cells import CELLS, WAITING
from proofs import PROOFS, proof_of

from numba_marlin.bench.tables import markdown, replace_between
from numba_marlin.mutation.mutants import mutants
from numba_marlin.mutation.program import Program
from numba_marlin.mutation.rules import KINDS

MARKERS = ("<!-- results:begin -->", "<!-- results:end -->")
GROUPS = ("hazard", "deadlock", "wrong result", "equivalent", "survived")


def settled(rows):
    """``rows`` with every mutant that nothing caught as "equivalent", by a proof that names it and
    holds of the PTX, or "survived"."""
    programs = {}
    found = []
    for row in rows:
        if row["outcome"] != "caught":
            cell = CELLS[row["cell"]]
            if cell.name not in programs:
                ptx = cell.compiled.ptx
                programs[cell.name] = Program(ptx), {mutant.name: mutant for mutant in mutants(ptx)}
            program, known = programs[cell.name]
            proof = proof_of(cell, program, known[row["mutant"]])
            row = {key: value for key, value in row.items() if key != "proof"} | {
                "outcome": "survived" if proof is None else "equivalent"
            }
            if proof is not None:
                row["proof"] = proof.name
        found.append(row)
    return found


def group(row):
    """Of GROUPS."""
    if row["outcome"] != "caught":
        return row["outcome"]
    return {"Deadlock": "deadlock", "wrong result": "wrong result"}.get(row["how"], "hazard")


def table(rows, field, names):
    counts = Counter((row[field], group(row)) for row in rows)
    lines = [
        [
            name,
            str(sum(counts[name, each] for each in GROUPS)),
            *(str(counts[name, each]) for each in GROUPS),
        ]
        for name in names
    ]
    total = Counter(map(group, rows))
    return markdown(
        [field, "mutants", *GROUPS],
        [*lines, ["all", str(len(rows)), *(str(total[each]) for each in GROUPS)]],
    )


def proofs(rows):
    used = Counter(row["proof"] for row in rows if row["outcome"] == "equivalent")
    return "\n".join(
        f"- **{proof.name}** ({', '.join(proof.kernels)}; {used[proof.name]}): {proof.reason}"
        for proof in PROOFS
        if used[proof.name]
    )


def survivors(rows):
    left = [row for row in rows if row["outcome"] == "survived"]
    if not left:
        return "Nobody survived."
    return "Survived:\n\n" + "\n".join(
        f"- {row['cell']}: `{row['mutant']}`, line {row['line']}, `{row['original']}` ->"
        f" `{row['mutated']}`"
        for row in left
    )


def report(rows, readme, what):
    """Prints the tables and puts them into ``readme``; -> 1 if somebody survived, else 0."""
    rows = list(rows)
    hazards = Counter(row["how"] for row in rows if group(row) == "hazard")
    text = "\n\n".join(
        [
            (
                f"{len(rows)} mutants ({what}; {min(row['date'] for row in rows)} to"
                f" {max(row['date'] for row in rows)})."
            ),
            table(
                rows, "cell", [name for name in CELLS if any(row["cell"] == name for row in rows)]
            ),
            table(rows, "kind", KINDS),
            "Hazards: "
            + ", ".join(f"{name} {count}" for name, count in hazards.most_common())
            + ".",
            (
                "Equivalent, and why; a proof holds for a mutant only if what it says of the PTX is"
                " so (`proofs.py`):"
            ),
            proofs(rows),
            survivors(rows),
            *([f"Not judged yet: {'; '.join(WAITING)}."] if WAITING else []),
        ]
    )
    replace_between(readme, MARKERS, text)
    print(re.sub(r"(?s)Equivalent, and why.*?\n\n.*?\n\n", "", text))
    return int(any(row["outcome"] == "survived" for row in rows))
