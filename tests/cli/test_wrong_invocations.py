"""Contract under test: a wrong command ends with its exit code (2: usage or bad input; 3: something
is missing here) and says on stderr, in at most LINES lines, what is wrong and what would be right.
It prints nothing else, writes nothing, and with ``--json`` says the same in its object.

One list, all verbs. What single verbs refuse beyond it is in their own modules."""

import contextlib
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_marlin.cli import main as cli
from numba_marlin.execution import driver
from numba_marlin.wording import printable

LINES = 4  # of an error; the usage above it and progress do not count
SUFFIXES = ("npy", "npz", "json", "jsonl", "ptx", "safetensors")
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry first(.param .u64 a) { ret; }
.visible .entry second(.param .u64 a) { ret; }
"""
ENTRY = "machine run k.ptx --entry first --args"

# (command, what its error says)
WRONG = [
    # no verb, or none that there is
    ("dance", "invalid choice: 'dance'"),
    ("rnu", "did you mean 'run'?"),
    ("''", "invalid choice: ''"),
    ("--versoin", "did you mean '--version'?"),
    ("--m 16", "unrecognized arguments: --m: the verb comes first"),
    # run
    ("run extra", "unrecognized arguments: extra"),
    ("run --frobnicate", "unrecognized arguments: --frobnicate"),
    ("run --inptu w.npy", "did you mean '--input'?"),
    ("run --input missing.npy", "--input missing.npy: no such file"),
    ("run --input dir", "--input dir: is not a regular file"),
    ("run --input dir.npy", "is not a regular file"),
    ("run --input text.npy", "text.npy: not a .npy array of numbers"),
    ("run --input empty.npy", "empty.npy: not a .npy array of numbers"),
    ("run --input binary.safetensors", "binary.safetensors: not a .safetensors file"),
    ("run --input text.txt", "must be a .npy or .safetensors file"),
    ("run --input ''", "--input: must not be empty"),
    ("run --input q.safetensors", "choose one with --tensor"),
    ("run --input w.npy --n 64", "--n and --k describe a random weight"),
    ("run --tensor w", "--tensor needs --input"),
    ("run --transpose", "--transpose needs --input"),
    ("run --kernel decod", "did you mean 'decode'?"),
    ("run --kernel block_mma", "kernels that do: general"),
    ("run --format nvpf4", "did you mean 'nvfp4'?"),
    ("run --format mxfp4 --batch-invariant", "leave out --batch-invariant"),
    ("run --format mxfp4 --zeros integer --method mse", "leave out --zeros and --method"),
    ("run --backend tpu", "invalid choice: 'tpu'"),
    ("run --backend cuda", "no NVIDIA driver on this machine"),
    ("run --bits 5", "choose from 4, 8"),
    ("run --m 0", "--m 0 must be at least 1"),
    ("run --m -1", "--m -1 must be at least 1"),
    ("run --m two", "invalid int value: 'two'"),
    ("run --m 1.5", "invalid int value: '1.5'"),
    ("run --m ''", "--m: must not be empty"),
    ("run --m nan", "invalid int value: 'nan'"),
    ("run --m 99999999999999999999", "must be positive and fit in 32 bits"),
    ("run --n 100", "n=100 must be a positive multiple of 8"),
    ("run --n -64", "--n -64 must be positive"),
    ("run --n 0", "--k 1024 and --n 0 must be positive"),
    ("run --k 0", "--k 0 and --n 256 must be positive"),
    ("run --n 1073741824 --k 1073741824", "--anyway runs it all the same"),
    ("run --k 1000 --group-size -1", "k=1000 must be a positive multiple of 16"),
    ("run --group-size 0", "group_size=0 must be positive"),
    ("run --group-size -2", "group_size=-2 must be positive"),
    ("run --group-size 96", "group_size=96 must divide k=1024"),
    ("run --seed -1", "--seed -1 must not be negative"),
    ("run --seed 1e3", "invalid int value: '1e3'"),
    ("run --save y.txt", "--save y.txt must end in .npy"),
    ("run --save no/such/directory/y.npy", "there is no directory"),
    ("run --save /proc/y.npy", "directory /proc must be writable"),
    ("run --save dir.npy", "--save dir.npy is a directory"),
    ("run --input w.npy --save ./w.npy", "--save ./w.npy is the file of --input"),
    ("run --out ''", "--out: must not be empty"),
    ("run --out dir.json", "--out dir.json is a directory"),
    # info
    ("info extra", "unrecognized arguments: extra"),
    ("info --josn", "did you mean '--json'?"),
    ("info --out x.txt", "--out x.txt must end in .json"),
    ("info --seed 1", "unrecognized arguments: --seed 1"),
    # explain
    ("explain", "required: --m, --n, --k"),
    ("explain --m 1 --n 64 --k nan", "invalid int value: 'nan'"),
    ("explain --m 0 --n 64 --k 128", "m=0 must be positive"),
    ("explain --m 1 --n 64 --k 99999999999999999999", "fit in 32 bits"),
    ("explain --m 1 --n 63 --k 128", "n=63 must be a positive multiple of 8"),
    ("explain --m 1 --n 64 --k 128 --device H300", "did you mean 'H200'?"),
    ("explain --m 1 --n 64 --k 128 --device ''", "--device: must not be empty"),
    ("explain --m 1 --n 64 --k 128 --codes e2m", "did you mean 'e2m1'?"),
    ("explain --m 1 --n 64 --k 128 --codes e2m1", "group_size=128 must be one of (16, 32)"),
    ("explain --m 1 --n 64 --k 128 --format nvfp4 --bits 8", "leave out --bits"),
    ("explain --m 1 --n 64 --k 128 --format nvfp4 --group-size 128", "leave it out"),
    ("explain --m 1 --n 64 --k 128 --autotune", "--autotune measures on this machine's GPU"),
    # inspect
    ("inspect", "required: SRC"),
    ("inspect missing", "missing: no such file or directory"),
    ("inspect dir", "dir: holds no .safetensors file"),
    ("inspect text.safetensors", "6 bytes are too few for a .safetensors file"),
    ("inspect w.npy", "w.npy: not a .safetensors file"),
    ("inspect ''", "SRC: must not be empty"),
    ("inspect q.safetensors --to gtpq", "did you mean 'gptq'?"),
    ("inspect q.safetensors q.safetensors", "unrecognized arguments: q.safetensors"),
    ("inspect 'bad\x1b[31m.safetensors'", "bad\\x1b[31m.safetensors: no such file"),
    ("inspect 'bad\udcff.safetensors'", "bad\\udcff.safetensors: no such file"),
    # convert
    ("convert q.safetensors", "required: DST, --to"),
    ("convert q.safetensors out --to gtpq", "did you mean 'gptq'?"),
    ("convert q.safetensors out --to awq --from gptqq", "did you mean 'gptq'?"),
    ("convert q.safetensors out --to awq --from awq", "qweight: shape (16, 64) must be (16, 8)"),
    ("convert q.safetensors out --to nvfp4-pack-quantized", "quantise anew"),
    ("convert q.safetensors q.safetensors --to awq", "q.safetensors exists"),
    ("convert q.safetensors dir --to awq", "dir exists: a checkpoint is never overwritten"),
    ("convert q.safetensors no/x.safetensors --to awq", "there is no directory no"),
    ("convert q.safetensors '' --to awq", "DST: must not be empty"),
    ("convert missing out --to awq", "missing: no such file or directory"),
    ("convert text.safetensors out --to awq", "too few for a .safetensors file"),
    ("convert q.safetensors out --to awq --shard-bytes 0", "must be at least 1"),
    ("convert q.safetensors out --to awq --shard-bytes nan", "must be at least 1"),
    ("convert q.safetensors out --to awq --shard-bytes x", "invalid float value: 'x'"),
    # bench
    ("bench --m 1 --n 64 --k 128", "bench needs a GPU: no NVIDIA driver on this machine"),
    ("bench --shapes llama-3-8", "did you mean 'llama-3-8b'?"),
    ("bench --shapes ''", "--shapes: must not be empty"),
    ("bench --shapes 0x64", "k=0 must be positive"),
    ("bench --m 0", "--m 0: 0 must be at least 1"),
    ("bench --m 1,,2", "--m 1,,2: '' is not an integer"),
    ("bench --n 64", "--n and --k belong together"),
    ("bench --n 64 --k 128 --shapes ideal", "--shapes or --n and --k, not both"),
    ("bench --rounds 0", "--rounds 0 must be at least 1"),
    ("bench --kernel decod", "did you mean 'decode'?"),
    ("bench --kernel all --autotune", "--kernel all has no effect"),
    ("bench --backend emulator", "needs --n and --k, small ones"),
    ("bench --backend emulator --n 64 --k 128 --save x.jsonl", "--save needs times: a GPU"),
    ("bench --save dir.jsonl", "--save dir.jsonl is a directory"),
    ("bench --plot x.txt", "must end in .png or .svg or .pdf"),
    # compare
    ("compare empty.jsonl", "required: B"),
    ("compare missing.jsonl missing.jsonl", "missing.jsonl: no such file or directory"),
    ("compare dir dir", "dir: is a directory"),
    ("compare text.jsonl text.jsonl", "text.jsonl, line 1: Expecting value"),
    ("compare empty.jsonl empty.jsonl", "what numba-marlin bench wrote to --save"),
    ("compare binary.jsonl binary.jsonl", "must be a text file of JSON"),
    ("compare empty.jsonl empty.jsonl --tolerance nan", "must be from 0 to below 100"),
    ("compare empty.jsonl empty.jsonl --by speed", "did you mean 'speedup'?"),
    ("compare empty.json empty.json --out empty.json", "the result would take its place"),
    # machine
    ("machine", "required: action, FILE.ptx"),
    ("machine rnu k.ptx", "did you mean 'run'?"),
    ("machine run missing.ptx", "missing.ptx: no such file or directory"),
    ("machine run dir", "dir: is a directory"),
    ("machine run empty.ptx", "there are none"),
    ("machine run text.ptx", "unknown directive 'hello'"),
    ("machine run binary.ptx", "binary.ptx: must be PTX, which is text"),
    ("machine run k.ptx", "entry must be one of first, second"),
    ("machine run k.ptx --entry secnd", "did you mean 'second'?"),
    ("machine entries k.ptx --args null", "--args is for `machine run`"),
    ("machine entries k.ptx --entry first --counts", "--entry is for `machine run`"),
    (f"{ENTRY} i32:1", "argument 0 is 4 bytes, parameter a takes 8"),
    (f"{ENTRY} i64:1 i64:2", "--args has 2 arguments, first takes 1"),
    (f"{ENTRY} ''", "argument 0: '' must be a number such as i32:5"),
    (f"{ENTRY} i64:x", "argument 0: 'x' is no number"),
    (f"{ENTRY} i32:99999999999999", "must be between -2147483648 and 2147483647"),
    (f"{ENTRY} out:f33[4]", "type 'f33' must be one of"),
    (f"{ENTRY} out:f32[99999999999999999]", "argument 0: f32[99999999999999999] is too large"),
    (f"{ENTRY} in:f32[99999999999999999]", "argument 0: f32[99999999999999999] is too large"),
    (f"{ENTRY} out:f32[{'9' * 30}x9]", "is too large"),
    (f"{ENTRY} inout:i32[{'9' * 30}]", "is too large"),
    (f"{ENTRY} in:missing.npy", "argument 0: missing.npy: no such file"),
    (f"{ENTRY} out:f32[4]:no/y.npy", "there is no directory no"),
    (f"{ENTRY} inout:w.npy:w.npy", "the result would take the place of w.npy"),
    (f"{ENTRY} hex:zz", "must be hexadecimal digits"),
    (f"{ENTRY} null --grid 0", "must be one to three positive integers"),
    (f"{ENTRY} null --grid x", "--grid x must be one to three numbers"),
    (f"{ENTRY} null --grid 99999999999999999999", "or a smaller grid"),
    (f"{ENTRY} null --block 2048", "at most 1024 are allowed"),
    (f"{ENTRY} null --cluster 3", "must divide grid=(1, 1, 1)"),
    (f"{ENTRY} null --shared -1", "must not be negative"),
    (f"{ENTRY} null --budget 0", "max_instructions=0 must be positive"),
    (f"{ENTRY} null --resident 0", "resident_blocks=0 must be positive"),
    # trace
    ("trace --demo --m 1", "--demo determines what is traced; omit --m"),
    ("trace --demo --open x.npz", "choose one"),
    ("trace --open missing.npz", "missing.npz: no such file or directory"),
    ("trace --open dir.npz", "dir.npz: is a directory"),
    ("trace --open text.npz", "File is not a zip file"),
    ("trace --open ''", "--open: must not be empty"),
    ("trace --compare empty.npz", "empty.npz is not a trace"),
    ("trace --compare text.npz --phase copies", "omit --phase"),
    ("trace --phase copeis", "did you mean 'copies'?"),
    ("trace --phase ''", "--phase: must not be empty"),
    ("trace --lane 32", "--lane 32 must be 0 to 31"),
    ("trace --warp 99", "--warp 99 must be 0 to 7"),
    ("trace --block 99", "--block 99 must be 0 to 3"),
    ("trace --step -1", "--step -1 must not be negative"),
    ("trace --weights nvpf4", "did you mean 'nvfp4'?"),
    ("trace --weights nvfp4 --group-size 128", "must be 16 for --weights nvfp4"),
    ("trace --config stages", "must be NAME=VALUE with one of"),
    ("trace --config stges=3", "did you mean 'stages'?"),
    ("trace --config stages=x", "--config stages=x: stages must be int"),
    ("trace --config whole=3", "--config whole=3: whole must be bool: true or false"),
    ("trace --config stages=true", "--config stages=true: stages must be int"),
    ("trace --config stages=0", "stages=0 must be at least 3"),
    ("trace --config stages=999999", "needs shared_bytes=12543987456 per block"),
    ("trace --kernel tcgen05 --config result=3", "--config result=3: result must be str"),
    ("trace --sms 0", "--sms 0 must be at least 1"),
    ("trace --device H20", "did you mean 'H200'?"),
    ("trace --kernel wgmma --device 'RTX 4090'", "choose H200 or H100"),
    ("trace --n 63", "n=63 must be a positive multiple of 8"),
    ("trace --input q.safetensors --tensor nothing", "its quantised layers: weight"),
    ("trace --html x.txt", "must end in .html or .htm"),
    ("trace --perfetto no/x.json", "there is no directory no"),
    # quantize
    ("quantize w.npy", "required: DST"),
    ("quantize missing.npy out.safetensors", "SRC missing.npy: no such file"),
    ("methods", "required: SRC"),
    ("methods missing.npy --calib c.npy", "no such file"),
    ("methods w.npy", "--calib"),
    ("methods w.npy --calib x.npy", "must end in k=128"),
    ("methods w.npy --calib c.npy --methods gtpq", "did you mean 'gptq'?"),
    ("methods w.npy --calib c.npy --methods rtn,rtn", "once"),
    ("methods w.npy --calib c.npy --out ''", "--out: must not be empty"),
    ("warmup", "required: CHECKPOINT"),
    ("warmup missing.safetensors", "no such file"),
    ("warmup dir", "holds no .safetensors file"),
    ("warmup q.safetensors --m 0", "must go up, from 1"),
    ("warmup q.safetensors --m 8-1", "must go up, from 1"),
    ("warmup q.safetensors --device H300", "device='H300' is not one of"),
    ("warmup q.safetensors --processes 0", "--processes"),
    ("quantize text.txt out.safetensors", "too few for a .safetensors file"),
    ("quantize '' out.safetensors", "SRC: must not be empty"),
    ("quantize w.npy ''", "DST: must not be empty"),
    ("quantize w.npy q.safetensors", "q.safetensors exists"),
    ("quantize w.npy no/out.safetensors", "there is no directory no"),
    ("quantize w.npy out.safetensors --method gtpq", "did you mean 'gptq'?"),
    ("quantize w.npy out.safetensors --method gptq", "needs --calib FILE"),
    ("quantize w.npy out.safetensors --calib x.npy", "must end in k=128"),
    ("quantize w.npy out.safetensors --damping 0.1", "--damping is for --method gptq"),
    ("quantize w.npy out.safetensors --method gptq --calib missing.npy", "no such file"),
    ("quantize w.npy out.safetensors --method gptq --calib x.npy", "must end in k=128"),
    (
        "quantize w.npy out.safetensors --method gptq --calib c.npy --damping nan",
        "--damping nan must be",
    ),
    (
        "quantize w.npy out.safetensors --method gptq --calib c.npy --damping -1",
        "--damping -1.0 must be",
    ),
    ("quantize w.npy out.safetensors --bits 3", "choose from 4, 8"),
    ("quantize w.npy out.safetensors --group-size 7", "group_size=7 must divide k=128"),
    ("quantize w.npy out.safetensors --asymmetric", "zero points do not fit in format 'marlin'"),
    ("quantize w.npy out.safetensors --tensor x", "--tensor is for .safetensors files"),
    ("quantize q.safetensors out.safetensors --tensor 'no*'", "no matrix of floats"),
    ("quantize q.safetensors out.safetensors", "say --transpose if it is [n, k]"),
    ("quantize w.npy out.safetensors --format awq --bits 8", "bits"),
    # verify
    ("verify", "verify needs --hardware"),
    ("verify --hardware", "no usable GPU: no NVIDIA driver on this machine"),
    ("verify --hardware --groups regsters", "did you mean 'registers'?"),
    ("verify --hardware --groups ''", "--groups: must not be empty"),
    # unpack
    ("unpack --format gtpq", "did you mean 'gptq'?"),
    ("unpack --bits 0", "bits=0: format 'marlin' has codes of 4 bits"),
    ("unpack --k 1", "--k and --n go together"),
    ("unpack --k -1 --n 0", "must be within the 128 x 64 that B packs"),
    ("unpack --word 0,0 --k 1 --n 1", "exclude each other"),
    ("unpack --word 0", "must be ROW,COLUMN"),
    ("unpack --word 0,99999", "must be within B, which has 8 x 128 words"),
    ("unpack --word ''", "--word: must not be empty"),
    ("unpack --words 0", "--words 0 must be at least 1"),
    ("unpack --layer x", "--layer needs SRC"),
    ("unpack missing", "missing: no such file or directory"),
    ("unpack q.safetensors --layer wieght", "did you mean 'weight'?"),
    ("unpack q.safetensors --tensor qwieght", "did you mean 'qweight'?"),
    ("unpack q.safetensors --bits 4", "--bits is for a random layer"),
    ("unpack --view wrod", "did you mean 'word'?"),
    ("unpack --html x", "must end in .html or .htm"),
    # profile
    ("profile", "no problem is given"),
    ("profile --demo --m 1", "omit --demo, or --m, --n and --k"),
    ("profile --m 0 --n 64 --k 128", "m=0 must be positive"),
    ("profile --demo --kernel decod", "did you mean 'decode'?"),
    ("profile --demo --config stages=3", "also give --kernel"),
    ("profile --demo --kernel decode --config stges=3", "did you mean 'stages'?"),
    ("profile --demo --kernel block_decode --config stages=x", "stages must be int"),
    ("profile --demo --kernel block_scaled --group-size 16", "--group-size is not for"),
    ("profile --demo --device model", "name a GPU of the table"),
    ("profile --demo --view sumary", "did you mean 'summary'?"),
    ("profile --demo --view compare", "--view compare needs --against"),
    ("profile --open missing.json", "missing.json: no such file or directory"),
    ("profile --open dir.json", "dir.json: is a directory"),
    ("profile --open text.json", "text.json: not a profile"),
    ("profile --open text.json --demo", "--open shows a saved profile; omit --demo"),
    ("profile --open text.json --kernel decode", "--open shows a saved profile; omit --kernel"),
    ("profile --against binary.json --demo", "binary.json: not a profile"),
    ("profile --demo --save x.txt", "--save x.txt must end in .json"),
    # watch
    ("watch --hz 0", "--hz 0 must be from 1 to 10"),
    ("watch --hz nan", "--hz nan must be from 1 to 10"),
    ("watch --seconds -1", "--seconds -1 must not be negative"),
    ("watch --seconds nan", "--seconds nan must not be negative"),
    ("watch --device H200", "invalid int value: 'H200'"),
    ("watch --device -1", "--device -1 must not be negative"),
    ("watch --m 1", "--m, --n and --k go together"),
    ("watch --m 0 --n 64 --k 128", "m=0 must be positive"),
    ("watch --m 1 --n 64 --k 128 -- ls", "exclude each other"),
    ("watch -- no-such-command", "cannot run no-such-command"),
]
# here there is neither a GPU nor its driver
MISSING = {
    "run --backend cuda",
    "explain --m 1 --n 64 --k 128 --autotune",
    "bench --m 1 --n 64 --k 128",
    "verify --hardware",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of what is no input: empty, text, bytes and directories under every name; and a
    matrix, a checkpoint and a .ptx file that are."""
    here = tmp_path_factory.mktemp("wrong")
    for suffix in ("txt", *SUFFIXES):
        (here / f"text.{suffix}").write_text("hello\n")
        (here / f"empty.{suffix}").write_bytes(b"")
        (here / f"binary.{suffix}").write_bytes(bytes(range(256)))
        (here / f"dir.{suffix}").mkdir()
    (here / "dir").mkdir()
    (here / "k.ptx").write_text(PTX)
    np.save(here / "w.npy", np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32))
    np.save(here / "x.npy", np.ones((4, 96), np.float32))
    np.save(here / "c.npy", np.ones((4, 128), np.float32))
    quantised = ["quantize", here / "w.npy", here / "q.safetensors", "--format", "gptq"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main([str(each) for each in [*quantised, "--group-size", 32]]) == 0
    return here


def contents(folder: Path) -> dict:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def ended(argv, capsys):
    """-> (exit code, stdout, lines of stderr without usage and progress)"""
    try:
        code = cli.main(argv)
    except SystemExit as stop:  # argparse
        code = stop.code
    out, err = capsys.readouterr()
    start = err.find("numba-marlin", err.find("usage:") + len("usage: numba-marlin"))
    lines = err[max(start, 0) :] if err.startswith("usage:") else err
    return code, out, [line for line in lines.splitlines() if not line.endswith(" ...")]


def test_every_verb_is_called_wrongly():
    called = [shlex.split(command)[0] for command, _ in WRONG]
    assert {verb: called.count(verb) for verb in cli.VERBS if called.count(verb) < 4} == {}
    assert len(WRONG) == len(set(WRONG)) > 60 and {command for command, _ in WRONG} > MISSING


@pytest.mark.parametrize("command, said", WRONG, ids=[command for command, _ in WRONG])
def test_a_wrong_command_says_what_is_wrong(files, capsys, monkeypatch, command, said):
    monkeypatch.chdir(files)
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )
    before, argv = contents(files), shlex.split(command)
    code, out, err = ended(argv, capsys)
    assert code == (3 if command in MISSING else 2) and out == ""
    assert said in "\n".join(err) and 1 <= len(err) <= LINES, err
    assert err[0].startswith("numba-marlin") and ": error: " in err[0]
    assert not any(word in "".join(err) for word in ("Traceback", "Errno", "\x1b", "error:  "))
    assert contents(files) == before
    if "--" not in argv:
        code_of_json, out, again = ended([*argv, "--json"], capsys)
        assert code_of_json == code and again == err or "required" in said
        # argparse's own refusals leave no object
        told = json.loads(out) if out else {"ok": False, "error": said}
        assert said in printable(told["error"]) and told["ok"] is False
        assert contents(files) == before


# (what a shell runs, exit code, what stderr says)
SHELL = [
    ("inspect $'bad\\xff\\e[31m.safetensors'", 2, "bad\\udcff\\x1b[31m.safetensors: no such file"),
    ("run --input missing.npy >&-", 2, "missing.npy: no such file"),
    ("run --input missing.npy 2>&-", 2, ""),
    ("run --input missing.npy 2>/dev/full", 2, ""),
    ("run --input missing.npy --json >/dev/full", 2, "missing.npy: no such file"),
    ("dance 2>/dev/full", 2, ""),
    ("machine run k.ptx --entry first --args null 2>/dev/full >&-", 2, ""),
]


@pytest.mark.thorough
@pytest.mark.parametrize("command, code, said", SHELL, ids=[each[0] for each in SHELL])
def test_a_shell_is_told_too(files, command, code, said):
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m numba_marlin {command}"],
        capture_output=True,
        text=True,
        cwd=files,
    )
    assert done.returncode == code and said in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= LINES
