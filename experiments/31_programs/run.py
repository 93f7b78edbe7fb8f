"""Programs of CUDA C++ that nobody here wrote, host code and all, on the PTX machine.

    python experiments/31_programs/run.py make --samples FOLDER --llmc FOLDER [NAME ...]
    python experiments/31_programs/run.py measure [NAME ...]    # rows into results.jsonl
    python experiments/31_programs/run.py report                # the tables of README.md

``make`` takes checkouts of NVIDIA/cuda-samples and karpathy/llm.c and has nvcc compile each program
into a folder of its own below --folder; what lacks a header says so. ``measure`` reads and binds
every kernel, then runs the program with races looked for; where the machine reports something, once
more without looking for races, so that its own check of the result is heard.
"""

import argparse
import hashlib
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import building
import programs

RESULTS = HERE / "results.jsonl"
CHECKED = re.compile(r"pass|success|match|correct|no error|\bok\b|verif|TEST", re.IGNORECASE)
FAILED = re.compile(r"mismatch|test(s)? fail|result = fail|(?<!0 )failed", re.IGNORECASE)
WAITING = 6  # a crowded machine gives a process a fraction of its time
MOST_SAID = 300
NO_SUCH_KERNEL = re.compile("Invalid kernel number|only supported for fp32")  # what llm.c says
WAIVED = 2  # a sample's exit code where it cannot run on a device


def make(chosen: list[programs.Program], folder: Path) -> None:
    for program in chosen:
        place = folder / program.suite.replace(" ", "_") / program.name
        code = place / "code"
        code.mkdir(parents=True, exist_ok=True)
        sources, includes = program.copy(code)
        programs.copy_data(program, code)
        facts = {"suite": program.suite, "name": program.name, "runs": program.runs, "missing": ""}
        facts["changes"] = program.changes
        facts["code"] = digest(code, program.options)
        before = place / "facts.json"
        known = json.loads(before.read_text(encoding="utf-8")) if before.exists() else {}
        if known.get("code") == facts["code"]:
            facts["missing"] = known["missing"]
        else:
            try:
                building.build(sources, includes, program.options, place)
            except building.Missing as error:
                facts["missing"] = str(error)
        (place / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        print(program.name, facts["missing"] or "built", flush=True)


def digest(code: Path, options: tuple[str, ...]) -> str:
    """Of what a program is compiled from."""
    found = hashlib.sha256(repr(options).encode())
    for path in sorted(path for path in code.rglob("*") if path.suffix in programs.CODE):
        found.update(path.read_bytes())
    return found.hexdigest()


def child(place: Path, races: str, what: str, arguments: list[str], limit: int):
    """Events, exit code (None: cut short) and output of a run in a process of its own."""
    events = place / "events.jsonl"
    events.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "one_program.py"), str(place), str(events), races, what]
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=place / "code",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WAITING * limit,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5)),
        )
        code = None if done.returncode == -signal.SIGXCPU else done.returncode
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = None, ""
    found = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    return list(map(json.loads, found)), code, said


def judged(events: list[dict], code: int | None, said: str) -> tuple[str, str]:
    """(outcome, why) of a run."""
    stops = [each for each in events if each["event"] in ("refused", "report", "error")]
    launches = [each for each in events if each["event"] in ("launch", "assert")]
    if stops:
        stop = stops[0]
        if stop["event"] == "refused":
            return "refused", stop["what"]
        refusal = stop.get("kind") in ("unknown-instruction", "ptx-syntax-error", "limit-exceeded")
        if stop["event"] == "report":
            return ("refused" if refusal else "report"), stop["said"]
        return "error", stop["said"]
    if code is None:
        return "cut short", ""
    symbol = re.search(r"undefined symbol: (\w+)", said)
    if symbol:
        return "not compiled", f"{symbol[1]} is of a library that is not here"
    if "Traceback (most recent call last)" in said:
        return "error", said.strip().splitlines()[-1]
    if NO_SUCH_KERNEL.search(said):
        return "not compiled", "a kernel that the file's own options leave out"
    if code == WAIVED and "waiv" in said.lower():
        return "nothing launched", "waived: the program wants what this device lacks"
    if code or FAILED.search(said):
        return "wrong", " / ".join(said.strip().splitlines()[-3:])
    if not launches:
        return "nothing launched", " / ".join(said.strip().splitlines()[-2:])
    return ("right" if CHECKED.search(said) else "ends"), ""


def measure(folder: Path, names: list[str], limit: int) -> None:
    for path in sorted(folder.glob("*/*/facts.json")):
        facts, place = json.loads(path.read_text(encoding="utf-8")), path.parent
        if names and facts["name"] not in names:
            continue
        kernels = {}
        if not facts["missing"]:
            events, _, said = child(place, "off", "load", [], limit)
            kernels = {each["name"]: each["said"] for each in events if each["event"] == "kernel"}
        for arguments in [[]] if facts["missing"] else facts["runs"]:
            row = {"suite": facts["suite"], "program": facts["name"], "arguments": arguments}
            if facts["missing"]:
                row.update(outcome="not compiled", said=facts["missing"])
            else:
                row.update(one_run(place, arguments, limit, facts["name"]))
                row["kernels"] = len(kernels)
                row["unread"] = {k: v[:MOST_SAID] for k, v in kernels.items() if v}
            row["changed"] = len(facts["changes"])
            key = ("suite", "program", "arguments")
            known = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
            rows = list(map(json.loads, known.splitlines()))
            rows = [each for each in rows if [each[k] for k in key] != [row[k] for k in key]]
            rows = sorted([*rows, row], key=lambda each: [str(each[k]) for k in key])
            RESULTS.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
            shown = ("program", "arguments", "outcome", "without", "kernels", "said")
            print(*(row.get(each, "") for each in shown), flush=True)


def one_run(place: Path, arguments: list[str], limit: int, name: str) -> dict:
    events, code, said = child(place, "on", "run", arguments, limit)
    outcome, why = judged(events, code, said)
    why = re.sub(r"/[^ ()]*/", "", why)  # folders of this machine
    row = {"outcome": outcome, "said": why[:MOST_SAID]}
    if outcome == "report":
        again, code, said = child(place, "off", "run", arguments, limit)
        row["without"] = judged(again, code, said)[0]
        events = max(events, again, key=len)
    launches = [each for each in events if each["event"] == "launch"]
    row["launched"] = dict(Counter(each["kernel"] for each in launches))
    row["instructions"] = sum(each["instructions"] for each in launches)
    row["seconds"] = round(sum(each["seconds"] for each in launches), 2)
    row["warnings"] = sorted({warning for each in launches for warning in each["warnings"]})
    begun = [each["kernel"] for each in events if each["event"] == "begin"]
    row["in"] = begun[-1] if begun and outcome in ("report", "refused", "cut short") else ""
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("make", "measure", "report"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; default: all")
    parser.add_argument("--samples", type=Path, help="a checkout of NVIDIA/cuda-samples")
    parser.add_argument("--llmc", type=Path, help="a checkout of karpathy/llm.c")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "programs"))
    parser.add_argument("--limit", type=int, default=100, help="seconds of the processor a run")
    given = parser.parse_args()
    if given.action == "make":
        known = programs.samples(given.samples) if given.samples else []
        known += programs.llmc(given.llmc) if given.llmc else []
        make([each for each in known if not given.names or each.name in given.names], given.folder)
    elif given.action == "measure":
        measure(given.folder, given.names, given.limit)
    else:
        from report import write

        write(RESULTS, HERE / "README.md")


if __name__ == "__main__":
    main()
