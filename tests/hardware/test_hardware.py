"""Contract under test: ``hardware`` has the only copy of every limit, and says where each figure
comes from."""

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest

import numba_marlin
from numba_marlin.hardware import limits
from numba_marlin.hardware.architectures import AMPERE, ARCHITECTURES, HOPPER, architecture_of
from numba_marlin.hardware.devices import MODEL, SPECIFICATIONS, Device, device, specified
from numba_marlin.hardware.targets import TARGETS

PACKAGE = Path(numba_marlin.__file__).parent
FIGURES = ("sms", "bandwidth_bytes", "memory_bytes", "l2_bytes", "clock_mhz") + tuple(
    each.name for each in fields(Device) if each.name.endswith("_flops")
)


@pytest.mark.parametrize("row", SPECIFICATIONS, ids=lambda row: row.name)
def test_every_figure_has_exactly_one_source(row):
    named = [name for names, _ in row.references for name in names.split()]
    assert sorted(named) == sorted(name for name in FIGURES if getattr(row, name) is not None)
    for _, where in row.references:
        assert where.startswith(("https://", "measured: ", "reported "))
    assert row.reference_of("sms") and row.reference_of("compute_capability") is None


@pytest.mark.parametrize("row", SPECIFICATIONS, ids=lambda row: row.name)
def test_peaks_are_a_power_of_two_per_clock_and_sm(row):
    """Tensor cores do 512 to 8192 operations of 16-bit factors per cycle and SM; the makers' peaks
    go with the clock of the row within a few percent (B200: its peak goes with 1.86 GHz)."""
    per_cycle = row.matrix_flops / (row.sms * row.clock_mhz * 1e6)
    assert min(abs(per_cycle / 2**power - 1) for power in range(9, 14)) < 0.06
    for other in (row.fp8_flops, row.fp4_flops):
        assert other is None or other / row.matrix_flops == pytest.approx(
            round(other / row.matrix_flops)
        )


def test_sizes_of_sms_as_the_programming_guide_has_them():
    found = {each.capability: each.shared_bytes_per_block // 1024 for each in ARCHITECTURES}
    assert found == {
        (8, 0): 163,
        (8, 6): 99,
        (8, 9): 99,
        (9, 0): 227,
        (10, 0): 227,
        (12, 0): 99,
    }
    for each in ARCHITECTURES:
        assert each.shared_bytes_per_sm < each.l1_bytes_per_sm
        assert each.registers_per_sm % (each.warps_per_sm * limits.WARP_REGISTER_UNIT) == 0 or (
            each.warps_per_sm == 48
        )


def test_targets_are_those_of_the_architectures():
    assert {target.capability for target in TARGETS.values()} == {
        each.capability for each in ARCHITECTURES
    }
    assert [name for name, each in TARGETS.items() if each.specific] == [
        "sm_90a",
        "sm_100a",
        "sm_120a",
    ]


def test_a_capability_without_a_row_has_the_nearest_lower_one():
    assert architecture_of((9, 0)) is HOPPER and architecture_of((9, 9)) is HOPPER
    assert architecture_of((8, 7)).capability == (8, 6)
    assert architecture_of((7, 5)) is AMPERE


def test_a_drivers_name_finds_the_longest_row_that_it_contains():
    assert specified("NVIDIA H200") is device("h200")
    assert specified("NVIDIA A100-SXM4-80GB").name == "A100"
    assert specified("NVIDIA A10").name == "A10"
    assert specified("Some GPU") is None


def test_what_a_driver_said_goes_before_the_table():
    small = replace(MODEL, limits=replace(HOPPER, shared_bytes_per_sm=100 * 1024))
    assert small.shared_bytes_per_block == 99 * 1024
    assert MODEL.shared_bytes_per_block == HOPPER.shared_bytes_per_block


def values(source):
    """(line, value, text) of every number of the source, and of products of numbers. Numbers that
    are bit patterns by the way they are written, in hexadecimal or as a power 1 << n, have text
    that begins so."""

    def value(node):
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number
            case ast.BinOp(left, ast.Mult() | ast.LShift() as operator, right):
                pair = value(left), value(right)
                if None in pair or isinstance(operator, ast.LShift) and pair[1] > 64:
                    return None
                return pair[0] * pair[1] if isinstance(operator, ast.Mult) else pair[0] << pair[1]
        return None

    lines = source.encode().splitlines()
    for node in ast.walk(ast.parse(source)):
        found = value(node)
        if found is not None:
            # (ast.get_source_segment splits all of the source again, each time)
            yield node.lineno, found, lines[node.lineno - 1][node.col_offset :].decode()


def device_limits():
    """Values that are a limit or a figure of some GPU and seldom anything else."""
    found = {limits.STATIC_SHARED_BYTES, limits.GRID_BLOCKS[1]}
    for each in ARCHITECTURES:
        found |= {
            each.shared_bytes_per_block,
            each.shared_bytes_per_sm,
            each.registers_per_sm,
            each.register_bytes_per_sm,
        }
    for each in SPECIFICATIONS:
        found |= {getattr(each, name) for name in FIGURES if name != "sms"} | {each.sms}
    # SM counts that are also tile sizes, and sizes of round numbers
    return found - {None, 128, 72}


# what such a value means where it is no limit of a GPU
OTHERWISE = {
    ("emulator/state/numerics.py", 65536): "the first number beyond float16",
}


def test_no_other_room_has_a_copy_of_a_limit():
    wanted, found = device_limits(), {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if place.startswith("hardware/"):
            continue
        for line, value, text in values(path.read_text(encoding="utf-8")):
            if value in wanted and not text.startswith(("0x", "1 <<")):
                found.setdefault((place, value), line)
    assert {key: line for key, line in found.items() if key not in OTHERWISE} == {}
    assert set(OTHERWISE) <= set(found), "an exception that is no longer needed"


def test_kernels_take_the_mask_of_all_lanes_from_here():
    found = [
        path
        for path in (PACKAGE / "kernels").rglob("*.py")
        for _, value, _ in values(path.read_text(encoding="utf-8"))
        if value == limits.ALL_LANES and path.name != "tile_order.py"
    ]
    assert not found


def test_the_search_sees_a_copy():
    found = [value for _, value, _ in values("A, B, C = 227 * 1024, 65536, 60 << 20")]
    assert {232448, 65536, 60 << 20} <= set(found) & device_limits()
