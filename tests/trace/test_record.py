"""Contract under test: a record says what the machine did, to the last bit, and recording changes
nothing of it."""

import io
import json
import re
import tracemalloc
import zipfile

import numpy as np
import pytest

from numba_marlin import counts, trace
from numba_marlin.emulator import Machine
from numba_marlin.layout import fragments
from numba_marlin.trace.history import History, operands_of, vector
from numba_marlin.trace.provenance import BITWISE, altered_results, codes_of_bits, evaluate
from numba_marlin.trace.record import KINDS, SCHEMA, SPACES
from numba_marlin.trace.recorder import DIVIDED
from numba_marlin.trace.traffic import copies, loaded_from, requests_at
from tests.kernels.configurations import FAITHFUL
from tests.trace.runs import RUNS, launch, recorded

KERNELS = tuple(RUNS)


@pytest.mark.parametrize("key", KERNELS)
def test_every_warp_instruction_is_in_a_step(key):
    found, _ = recorded(key)
    members = np.diff(found.set_start)[found.step_set]
    assert (
        members.sum()
        == found.header["result"]["instructions"]
        == found.counts["total"]["tally"]["executed"]
    )
    assert found.steps == found.header["result"]["steps"] and found.header["complete"]
    assert (
        sum(len(found.steps_of(warp)) for warp in range(found.blocks * found.warps))
        == members.sum()
    )


def test_recording_changes_neither_results_nor_counts():
    machine, given, *_ = launch(*FAITHFUL, line_info=True)
    result, counted = counts.count(machine, **given)
    found, _ = recorded("ampere")
    assert result.instructions == found.header["result"]["instructions"]
    assert json.loads(json.dumps(counted.as_dict())) == json.loads(json.dumps(found.counts))


@pytest.mark.parametrize("key", ["ampere", "decode", "tiled", "nvfp4"])
def test_products_of_recorded_fragments_are_the_recorded_sums(key):
    """A times B plus C, gathered from the registers of 32 lanes by the fragment maps, is D: for
    every product of every warp of a block."""
    found, _ = recorded(key)
    count = 0
    for warp in range(found.warps):
        history = History(found, warp)
        for step in history.steps_with("mma").tolist():
            d, a, b, c = (vector(each) for each in history.operands(step))
            halves = [
                np.stack([history.value(name, step) for name in names], 1)
                .view(np.float16)
                .astype(np.float64)
                for names in (a, b)
            ]
            before, after = (
                np.stack([history.value(name, at).view(np.float32) for name in names], 1)
                for names, at in ((c, step), (d, step + 1))
            )
            left, right = (
                fragments.MMA_M16N8K16_A.scatter(halves[0]),
                fragments.MMA_M16N8K16_B.scatter(halves[1]),
            )
            sums = fragments.MMA_M16N8K16_C
            assert np.array_equal(left @ right + sums.scatter(before), sums.scatter(after))
            count += 1
    assert count >= 32


@pytest.mark.parametrize("key", KERNELS)
def test_words_of_weights_are_traced_to_their_bytes_in_global_memory(key):
    """What a lane loaded is what lies at the address that the record derives: by cp.async, bulk
    copies, TMA, through registers, or directly."""
    found, _ = recorded(key)
    b = found.buffer("b")
    contents, checked = found.words_b.view(np.uint32), 0
    for warp in range(min(found.warps, 4)):
        history = History(found, warp)
        for step in history.steps.tolist():
            ins = found.instructions[int(found.step_pc[step])]
            if ins["root"] != "ld" or ins["kind"] not in ("shared", "global") or checked > 400:
                continue
            asked = requests_at(found, step, warp)
            for register in ins["writes"]:
                for lane in (0, 5, 31):
                    address = (
                        loaded_from(found, history, step, register, lane)
                        if asked and asked[0].active[lane]
                        else None
                    )
                    if (
                        address is not None
                        and b["address"] <= address < b["address"] + b["nbytes"]
                        and address % 4 == 0
                        and re.search(r"\.[bus]32\b", ins["text"])
                    ):
                        assert (
                            history.result(register, step)[lane]
                            == contents[(address - b["address"]) // 4]
                        )
                        checked += 1
    assert checked > 8


@pytest.mark.parametrize("key", ["ampere", "decode", "wgmma"])
def test_copies_bring_every_byte_of_weights_once(key):
    found, _ = recorded(key)
    b = found.buffer("b")
    seen = np.zeros(b["nbytes"], int)
    for block in range(found.blocks):
        for copy in copies(found, block):
            assert copy.landed == -1 or copy.landed > copy.step
            if b["address"] <= copy.source < b["address"] + b["nbytes"]:
                seen[copy.source - b["address"] : copy.source - b["address"] + copy.nbytes] += 1
    rows_of_tiles = {"wgmma": 32 // RUNS["wgmma"]["config"].tile_m}.get(key, 1)
    assert (seen == rows_of_tiles).all()


def test_bitwise_instructions_evaluate_to_what_was_recorded():
    """The machine of ``provenance`` against the PTX machine, on every bitwise instruction of a
    warp."""
    found, _ = recorded("ampere")
    history, checked = History(found, 0), set()
    for step, lanes in zip(history.steps.tolist(), history.lanes.tolist()):
        ins = found.instructions[int(found.step_pc[step])]
        opcode = ins["text"].split()[0]
        if (
            ins["root"] not in BITWISE
            or not opcode.endswith(("b32", "u32"))
            or ins["guarded"]
            or "{" in ins["text"]
        ):
            continue
        for lane in (lane for lane in (0, 13) if lanes >> lane & 1):
            values = []
            for operand in operands_of(ins["text"])[1:]:
                held = history.value(operand, step)
                values.append(
                    int(held[lane])
                    if held is not None
                    else int(operand) & 0xFFFFFFFF
                    if operand.lstrip("-").isdigit()
                    else None
                )
            result = evaluate(ins["root"], values)
            if result is not None:
                assert result == history.result(ins["writes"][0], step)[lane], ins["text"]
                checked.add(ins["root"])
    assert {"lop3", "shr", "shl", "and"} <= checked


def test_bits_are_followed_to_the_codes_they_come_from():
    value, mask, exponent = 0x87654321, 0x000F000F, 0x64006400
    others = [value ^ 1 << bit for bit in range(32)]
    masked = (value & mask) | exponent
    low = altered_results(
        {"root": "lop3", "text": "lop3.b32"},
        [value, mask, exponent, 0xEA],
        [others, None, None, None],
        masked,
    )
    codes = codes_of_bits(masked, low, 4)
    assert codes[:4] == [1] * 4 and codes[16:20] == [1 << 4] * 4 and sum(map(bool, codes)) == 8
    halves = altered_results(
        {"root": "sub", "text": "sub.rn.f16x2 a, b, c;"}, [masked, 0], [low, None], 0x3C004200
    )
    assert codes_of_bits(0x3C004200, halves, 4) == [1] * 16 + [1 << 4] * 16
    shifted = altered_results(
        {"root": "shr", "text": "shr.u32"}, [value, 8], [others, None], value >> 8
    )
    assert codes_of_bits(value >> 8, shifted, 4)[:4] == [1 << 2] * 4
    both = altered_results({"root": "xor", "text": "xor.b32"}, [value, value], [others, others], 0)
    assert not any(codes_of_bits(0, both, 4))  # what cancels out comes from nowhere


def accesses_to(found, name):
    """[(step, warp)] of the accesses of all blocks to a buffer."""
    buffer = found.buffer(name)
    inside = (found.access_address >= buffer["address"]) & (
        found.access_address < buffer["address"] + buffer["nbytes"]
    )
    kept = inside.any(axis=1) & (found.access_space == SPACES.index("global"))
    kept &= np.isin(found.access_kind, [KINDS.index(kind) for kind in DIVIDED if kind in KINDS])
    return np.stack([found.access_step[kept], found.access_warp[kept]], axis=1)


def test_only_the_blocks_that_were_asked_for_are_kept():
    machine, given, *_ = launch(*FAITHFUL, line_info=True)
    found = trace.record(machine, blocks=(1,), **given)
    assert set((found.write_warp // found.warps).tolist()) == {1} == set(found.header["blocks"])
    of_others = found.access_address[found.access_warp // found.warps != 1]
    divided = {found.buffer_at(address)["name"] for address in of_others[of_others >= 0].tolist()}
    assert divided == {"b", "c"}  # who reads and writes them is known of every block
    whole, _ = recorded("ampere")
    for name in ("b", "c"):
        assert np.array_equal(accesses_to(found, name), accesses_to(whole, name))
    assert np.array_equal(found.step_pc, whole.step_pc) and np.array_equal(
        found.lock_before, whole.lock_before
    )
    assert np.array_equal(
        found.write_value, whole.write_value[whole.write_warp // whole.warps == 1]
    )
    machine, given, *_ = launch(*FAITHFUL, line_info=True)
    with pytest.raises(ValueError, match=r"blocks=\(7,\) must be some of the grid's blocks 0 to 2"):
        trace.record(machine, blocks=(7,), **given)


def test_a_file_gives_the_trace_back(tmp_path):
    found, _ = recorded("ampere")
    path = tmp_path / "run.npz"
    trace.save(found, path)
    again = trace.open_trace(path)
    assert (
        again.header == json.loads(json.dumps(found.header))
        and again.arrays.keys() == found.arrays.keys()
    )
    assert all(
        np.array_equal(again.arrays[name], array) and again.arrays[name].dtype == array.dtype
        for name, array in found.arrays.items()
    )


def test_files_that_are_no_traces_are_refused(tmp_path):
    path = tmp_path / "run.npz"
    for contents in (b"", b"no zip", b"PK\x03\x04 broken"):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match="is not a trace that"):
            trace.open_trace(path)
    np.savez_compressed(path, header=np.arange(1000))
    damaged = bytearray(path.read_bytes())
    damaged[60:80] = bytes(20)  # of what is compressed
    np.save(tmp_path / "array.npy", np.zeros(3))
    for contents in (bytes(damaged), (tmp_path / "array.npy").read_bytes()):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match="is not a trace that"):
            trace.open_trace(path)
    np.savez(path, header=np.frombuffer(b"[" * 100_000, np.uint8))
    with pytest.raises(ValueError, match="is not a trace that"):
        trace.open_trace(path)
    np.savez(path, x=np.zeros(3))
    with pytest.raises(ValueError, match="is not a trace that"):
        trace.open_trace(path)
    np.savez(
        path,
        header=np.frombuffer(
            json.dumps({"schema": "numba-marlin/trace-file/0"}).encode(), np.uint8
        ),
    )
    with pytest.raises(ValueError, match=f"this version reads '{SCHEMA}'"):
        trace.open_trace(path)
    np.savez(path, header=np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="is not a trace that"):
        trace.open_trace(path)


def array_file(shape):
    """A .npy of zeros; of its header only, it is as if they were all there."""
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        made, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return made.getvalue()


@pytest.mark.thorough
def test_a_file_that_unpacks_to_gigabytes_is_refused_before_it_takes_memory(tmp_path):
    path = tmp_path / "run.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("header.npy", "w") as entry,
    ):
        entry.write(array_file((600 << 20,)))
        for _ in range(600):
            entry.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="600 MiB.*at most 512 MiB"):
            trace.open_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "method, shape, message",
    [
        (zipfile.ZIP_LZMA, (8,), "method 14"),  # nothing bounds what a step of it unpacks
        (zipfile.ZIP_BZIP2, (8,), "method 12"),
        (zipfile.ZIP_DEFLATED, (1 << 40,), "header.npy"),  # promises more than it holds
        (zipfile.ZIP_STORED, (1 << 62, 1 << 62), "header.npy"),
    ],
)
def test_arrays_that_no_trace_has_are_refused(method, shape, message, tmp_path):
    path = tmp_path / "run.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("header.npy", array_file(shape) + bytes(8))
    with pytest.raises(ValueError, match=f"is not a trace that.*{message}"):
        trace.open_trace(path)


def test_a_file_of_very_many_arrays_is_refused_at_once(tmp_path):
    path = tmp_path / "run.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1001):
            archive.writestr(f"{number}.npy", b"")
    with pytest.raises(ValueError, match="1001 arrays"):
        trace.open_trace(path)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.thorough) for s in range(1, 20))]
)
def test_damaged_files_are_refused_in_one_line(seed, tmp_path):
    """Any byte of a small one, and bytes of the zip's own tables most of all."""
    path = tmp_path / "run.npz"
    header = json.dumps({"schema": SCHEMA}).encode()
    np.savez_compressed(path, header=np.frombuffer(header, np.uint8), step_pc=np.arange(9))
    whole = path.read_bytes()
    random, refused = np.random.default_rng(seed), 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            trace.open_trace(path)
        except ValueError as error:
            assert "\n" not in str(error) and str(path) in str(error)
            refused += 1
    assert refused > len(whole) // 2


FOREIGN = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 p)
{
  .reg .u64 %rd<4>;
  .reg .u32 %r<4>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  ld.global.u32 %r2, [%rd3];
  { .reg .u32 %r9; add.u32 %r9, %r2, %r2; st.global.u32 [%rd3], %r9; }
  ret;
}
"""


def test_any_ptx_can_be_recorded_and_looked_at():
    from numba_marlin.trace import pages
    from numba_marlin.views import text

    machine, data = Machine(FOREIGN), np.arange(64, dtype=np.uint32)
    found = trace.record(
        machine, grid=1, block=64, args=[machine.memory.buffer(data, "data").address]
    )
    history = History(found, 1)
    load = int(history.steps_with("ld")[-1])
    assert np.array_equal(history.result("%r2", load), np.arange(32, 64)) and np.array_equal(
        found.after_data.view(np.uint32), 2 * np.arange(64)
    )
    links, ends = history.followed(load, "%r2", 3)
    assert [link.register for link in links] == ["%r9"] and len(ends) == 1
    assert "twice" in text.render(pages.page(found))


def test_fragments_of_ldmatrix_are_traced_to_the_activations_that_they_hold():
    found, _ = recorded("ampere")
    a, history, checked = found.buffer("a"), History(found, 0), 0
    contents = found.words_a.view(np.uint8)
    steps = [
        step
        for step in found.steps_of(0).tolist()
        if found.instructions[int(found.step_pc[step])]["text"].startswith("ldmatrix")
    ]
    for step in steps[:3]:
        for register in found.instructions[int(found.step_pc[step])]["writes"]:
            for lane, byte in ((0, 0), (5, 2), (6, 1), (31, 3)):
                address = loaded_from(found, history, step, register, lane, byte)
                value = int(history.result(register, step)[lane]) >> 8 * byte & 0xFF
                assert value == contents[address - a["address"]]
                checked += 1
    assert checked >= 24
