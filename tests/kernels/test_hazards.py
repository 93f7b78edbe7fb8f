"""Contract under test: the machine catches a faithful kernel that lost one of its guards. Each test breaks the compiled kernel once.

(The systematic version, every guard of every kernel, is the mutation tool's business.)
"""
import re

import pytest

from tests.kernels.harness import run_kernel
from numba_marlin import testing
from numba_marlin.emulator import errors


def broken(edit, **options):
    problem = testing.exact_problem(4, 256, 768, 128, seed=1)
    edited = []

    def edit_once(ptx):
        result = edit(ptx)
        assert result != ptx, "the edit found nothing to break"
        edited.append(True)
        return result

    try:
        run = run_kernel("ampere", problem.x, problem.weight, sms=3, edit_ptx=edit_once, **options)
    finally:
        assert edited
    return (run.c == problem.expected).all()


def test_the_intact_kernel_passes():
    assert broken(lambda ptx: ptx + "\n")


def test_waiting_for_one_group_too_few_reads_bytes_in_flight():
    with pytest.raises(errors.PendingCopyRead, match=r"(?s)line \d+.*block.*warp.*lane"):
        broken(lambda ptx: re.sub(r"cp\.async\.wait_group\s+2;", "cp.async.wait_group 3;", ptx))


def test_never_waiting_reads_bytes_in_flight():
    with pytest.raises(errors.PendingCopyRead):
        broken(lambda ptx: re.sub(r"cp\.async\.wait_group\s+2;", "", ptx))


def test_a_lock_that_is_never_released_is_a_deadlock():
    with pytest.raises(errors.Deadlock, match="block"):
        broken(lambda ptx: re.sub(r"red\.release\.gpu[^;]*;", "", ptx))


def test_a_copy_past_the_weights_is_out_of_bounds():
    """Doubling the bytes of a weights copy's source address walks off the matrix."""
    with pytest.raises(errors.OutOfBounds, match=r"(?s)line \d+"):
        broken(lambda ptx: re.sub(r"(mul\.wide\.u32[^;]*, )(\d+);", lambda found: f"{found[1]}{int(found[2]) * 512};", ptx, count=1)
               if "mul.wide.u32" in ptx else re.sub(r"shl\.b64(\s+%\w+, %\w+), \d+;", r"shl.b64\1, 30;", ptx))


def test_a_swizzle_that_reads_differ_from_writes_gives_wrong_results():
    """Reading row r's chunks as if they were row r + 1's: no access is illegal, the product is wrong."""
    def rotate_rows(ptx):
        return re.sub(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \{(%\w+), ?(%\w+), ?(%\w+), ?(%\w+)\}",
                      r"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {\2, \1, \3, \4}", ptx)
    assert not broken(rotate_rows)
