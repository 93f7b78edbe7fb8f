"""Contract under test: ``machine run`` runs PTX from a file with arguments from the command line,
and says what is wrong in an exit code and a sentence."""

import json

import numpy as np
import pytest

from numba_marlin.cli import main as cli
from tests.emulator.ptx_cases import HEADER

SCALE = (
    HEADER
    + """
.visible .entry scale(
    .param .u64 x, .param .u64 y, .param .f32 by, .param .align 4 .b8 shift[8], .param .u32 n)
{
.reg .pred %p<2>;
.reg .b32 %r<5>;
.reg .f32 %f<5>;
.reg .b64 %d<4>;
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %ntid.x;
mov.u32 %r3, %tid.x;
mad.lo.u32 %r1, %r1, %r2, %r3;
ld.param.u32 %r2, [n];
setp.ge.u32 %p1, %r1, %r2;
@%p1 ret;
ld.param.u64 %d1, [x];
ld.param.u64 %d2, [y];
mad.wide.u32 %d1, %r1, 4, %d1;
mad.wide.u32 %d2, %r1, 4, %d2;
ld.global.f32 %f1, [%d1];
ld.param.f32 %f2, [by];
ld.param.f32 %f3, [shift+4];
fma.rn.f32 %f1, %f1, %f2, %f3;
st.global.f32 [%d2], %f1;
ret;
}
"""
)
OTHER = ".visible .entry other()\n{\nret;\n}\n"
SHIFT = "hex:00000000" + np.float32(0.5).tobytes().hex()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "k.ptx").write_text(SCALE)
    np.save(tmp_path / "x.npy", np.arange(50, dtype=np.float32))
    return tmp_path


def machine(capsys, *arguments):
    """(exit code, JSON object, stderr)"""
    code = cli.main(["machine", *map(str, arguments), "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else None, printed.err


def scaled(files, capsys, x, y, *more, by="f32:3", n="u32:50"):
    return machine(
        capsys,
        "run",
        files / "k.ptx",
        "--grid",
        2,
        "--block",
        32,
        "--args",
        x,
        y,
        by,
        SHIFT,
        n,
        *more,
    )


def test_files_in_results_out(files, capsys):
    code, found, _ = scaled(files, capsys, f"in:{files}/x.npy", f"result=out:f32[50]:{files}/y.npy")
    expected = np.arange(50, dtype=np.float32) * 3 + np.float32(0.5)
    assert (
        code == 0
        and found["ok"]
        and found["schema"] == "numba-marlin/machine/1"
        and (np.load(files / "y.npy") == expected).all()
    )
    assert found["outputs"] == [
        {
            "name": "result",
            "dtype": "float32",
            "shape": [50],
            "values": expected.tolist(),
            "min": 0.5,
            "max": 147.5,
        }
    ]
    assert found["instructions"] == sum(found["opcodes"].values()) and "counts" not in found


def test_an_array_may_be_read_and_written_and_the_file_stays(files, capsys):
    spec = f"inout:{files}/x.npy"
    code, found, _ = scaled(files, capsys, f"in:{files}/x.npy", spec)
    assert (
        code == 0
        and found["outputs"][0]["values"][:2] == [0.5, 3.5]
        and np.load(files / "x.npy")[1] == 1
    )
    # nor on request
    assert scaled(files, capsys, f"in:{files}/x.npy", f"{spec}:{files}/x.npy")[0] == 2


def test_random_arrays_follow_the_seed(files, capsys):
    first, again, other = (
        scaled(files, capsys, "in:f32[50]", "out:f32[5x10]", "--seed", seed)[1]["outputs"]
        for seed in (1, 1, 2)
    )
    assert first == again != other and first[0]["shape"] == [5, 10]


def test_counts_come_on_request(files, capsys):
    code, found, _ = scaled(
        files, capsys, "x=in:f32[50]", "y=out:f32[50]", "--counts", "--out", files / "counts.json"
    )
    buffers = {each["name"]: each for each in found["counts"]["buffers"]}
    assert (
        code == 0
        and json.loads((files / "counts.json").read_text()) == found
        and buffers["x"]["reads"]["bytes"] == buffers["y"]["writes"]["bytes"] == 200
    )
    assert (
        cli.main(
            [
                "machine",
                "run",
                str(files / "k.ptx"),
                "--grid",
                "2",
                "--counts",
                "--args",
                "x=in:f32[50]",
                "y=out:f32[50]",
                "f32:1",
                SHIFT,
                "u32:50",
            ]
        )
        == 0
    )
    assert "coalesced" in capsys.readouterr().out


def test_a_hazard_is_a_failed_check(files, capsys):
    code, found, error = scaled(files, capsys, f"mine=in:{files}/x.npy", "out:f32[50]", n="u32:51")
    assert (
        code == 1
        and not found["ok"]
        and "OutOfBounds" in error
        and "mine[50]" in error
        and "PTX line" in error
    )
    assert "ReadOnlyWrite" in scaled(files, capsys, "out:f32[50]", f"in:{files}/x.npy")[2]


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"x": "in:f31[5]"}, "type 'f31'"),
        ({"x": "in:nowhere.npy"}, "nowhere.npy"),
        ({"x": "somewhere"}, "must be a number such as"),
        ({"by": "f32:fast"}, "no number"),
        ({"by": "f64:1"}, "takes 4"),
        ({"n": "i8:50"}, "is 1 bytes"),
        ({"n": "u32:-1"}, "between 0 and"),
        ({"y": "out:f32[50]:y.txt"}, ".npy"),
        ({"y": "in:f32[50]:y.npy"}, "only out and inout"),
        ({"y": "hex:0"}, "hexadecimal"),
        ({"y": "tensormap:out:f32[50]"}, "must be tensormap:ARRAY,BOX,SWIZZLE"),
        ({"y": "tensormap:null,1,0"}, "must be tensormap:ARRAY"),
        ({"y": "tensormap:out:f32[50],1,2,3"}, "must be tensormap:ARRAY"),
        ({"y": "out:f32[50]:no/where/y.npy"}, "argument 1: no/where/y.npy: there is no directory"),
    ],
)
def test_what_is_wrong_with_an_argument_is_said(files, capsys, wrong, said):
    code, _, error = scaled(files, capsys, **{"x": "in:f32[50]", "y": "out:f32[50]", **wrong})
    assert code == 2 and said in error


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "not a .npy array of numbers"),
        (b"PK\x03\x04 no zip", "not a .npy array of numbers"),
        (b"\x80\x04 a pickle", "not a .npy array of numbers"),
        (None, "regular file"),
    ],
)
def test_files_that_hold_no_array_are_refused(files, capsys, content, said):
    (files / "y.npy").mkdir() if content is None else (files / "y.npy").write_bytes(content)
    code, found, error = scaled(files, capsys, f"in:{files}/y.npy", "out:f32[50]")
    assert code == 2 and said in error and "argument 0" in found["error"]


def test_arrays_are_read_as_a_kernel_reads_them(files, capsys):
    """Another byte order and another order of elements are put right; what is no number is refused,
    what JSON has no number for is not shown."""
    x = np.arange(50, dtype=np.float32)
    for other in (x.astype(">f4"), np.repeat(x, 2)[::2], np.asfortranarray(x.reshape(10, 5))):
        np.save(files / "other.npy", other)
        assert (
            scaled(files, capsys, f"in:{files}/other.npy", "out:f32[50]")[1]["outputs"][0]["max"]
            == 147.5
        )
    np.save(files / "other.npy", np.zeros(50, "M8[s]"))
    assert (
        "holds datetime64[s], must be numbers"
        in scaled(files, capsys, f"in:{files}/other.npy", "out:f32[50]")[2]
    )
    np.save(files / "other.npy", np.zeros(25, np.complex64))
    assert scaled(files, capsys, f"in:{files}/x.npy", f"inout:{files}/other.npy")[1]["outputs"] == [
        {"name": "argument1", "dtype": "complex64", "shape": [25]}
    ]


@pytest.mark.parametrize("y", ("out:f32[50]:{}/x.npy", "inout:{}/x.npy:{}/y.npy"))
def test_a_result_takes_the_place_of_no_argument_and_no_other_result(files, capsys, y):
    code, _, error = scaled(
        files,
        capsys,
        f"inout:f32[50]:{files}/y.npy" if "y.npy" in y else f"in:{files}/x.npy",
        y.format(files, files),
    )
    assert code == 2 and "argument 1: the result would take the place of" in error
    assert np.array_equal(np.load(files / "x.npy"), np.arange(50))


def test_a_file_without_kernels_says_so(files, capsys):
    (files / "none.ptx").write_text(HEADER)
    assert cli.main(["machine", "entries", str(files / "none.ptx")]) == 0
    assert "no kernel" in capsys.readouterr().out


def test_the_launch_must_fit(files, capsys):
    assert "5" in machine(capsys, "run", files / "k.ptx", "--args", "u32:1")[2]
    assert machine(capsys, "run", files / "k.ptx", "--grid", "two")[0] == 2
    (files / "two.ptx").write_text(SCALE + OTHER)
    code, _, error = machine(capsys, "run", files / "two.ptx")
    assert code == 2 and "scale, other" in error
    assert machine(capsys, "run", files / "two.ptx", "--entry", "other")[0] == 0


def test_entries_are_listed(files, capsys):
    code, found, _ = machine(capsys, "entries", files / "k.ptx")
    assert code == 0 and [each["bytes"] for each in found["entries"][0]["parameters"]] == [
        8,
        8,
        4,
        8,
        4,
    ]
    assert (
        cli.main(["machine", "entries", str(files / "k.ptx")]) == 0
        and "scale" in capsys.readouterr().out
    )


def test_an_instruction_that_the_machine_lacks_is_a_missing_capability(files, capsys):
    (files / "k.ptx").write_text(
        SCALE.replace(
            "fma.rn.f32 %f1, %f1, %f2, %f3;", "tex.1d.v4.f32.f32 {%f1, %f1, %f1, %f1}, [x, {%f1}];"
        )
    )
    code, _, error = machine(capsys, "run", files / "k.ptx")
    assert (
        code == 3
        and "tex.1d.v4.f32.f32" in error
        and "PTX line 26" in error
        and "what to do" in error
    )
    (files / "k.ptx").write_text("hello")
    assert machine(capsys, "run", files / "k.ptx")[0] == 2


def test_a_tensor_map_is_made_of_an_array(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(
        HEADER
        + """
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 y)
{
.reg .pred %p<2>;
.reg .b32 %r<9>;
.reg .b64 %d<4>;
.shared .align 128 .b8 tile[512];
.shared .align 8 .b64 barrier;
mov.b32 %r1, tile;
mov.b32 %r2, barrier;
mov.u32 %r3, %tid.x;
setp.ne.u32 %p1, %r3, 0;
@%p1 bra WAIT;
mbarrier.init.shared.b64 [%r2], 1;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512;
mov.b64 %d1, map;
cvta.param.u64 %d1, %d1;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%r1], [%d1, {8, 2}], [%r2];
WAIT:
bar.sync 0;
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;
@!%p1 bra AGAIN;
mad.lo.u32 %r4, %r3, 16, %r1;
ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r4];
ld.param.u64 %d1, [y];
mad.wide.u32 %d1, %r3, 16, %d1;
st.global.v4.b32 [%d1], {%r5, %r6, %r7, %r8};
ret;
}
"""
    )
    x = np.arange(16 * 32, dtype=np.float16).reshape(16, 32)
    np.save(tmp_path / "x.npy", x)
    code, found, _ = machine(
        capsys,
        "run",
        tmp_path / "k.ptx",
        "--args",
        f"tensormap:in:{tmp_path}/x.npy,16x16",
        "out:f16[16x16]",
    )
    expected = np.zeros((16, 16), np.float16)
    expected[:14] = x[2:16, 8:24]
    assert code == 0 and found["outputs"][0]["values"] == expected.tolist()
    assert (
        machine(
            capsys,
            "run",
            tmp_path / "k.ptx",
            "--args",
            f"tensormap:in:{tmp_path}/x.npy",
            "out:f16[16x16]",
        )[0]
        == 2
    )


def test_names_in_ptx_steer_no_terminal(tmp_path, capsys):
    path = tmp_path / "k.ptx"
    path.write_text(
        '.version 8.0\n.target sm_80\n.address_size 64\n.file 1 "a\x1b]0;owned\x07.cu"\n'
        ".visible .entry k() {\n.loc 1 5 0\nret;\n}\n"
    )
    assert cli.main(["machine", "run", str(path), "--counts"]) == 0
    out = capsys.readouterr().out
    assert "a\\x1b]0;owned\\x07.cu:5" in out and "\x1b" not in out and "\x07" not in out


def test_what_a_kernel_prints_is_shown(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(
        HEADER
        + """.extern .func (.param .b32 n) vprintf (.param .b64 t, .param .b64 v);
        .global .align 1 .b8 said[4] = {104, 105, 10, 0};
        .visible .entry k() { .reg .b64 %d<2>; mov.b64 %d0, said; cvta.global.u64 %d0, %d0;
        .param .b64 a; .param .b64 b; .param .b32 n; st.param.b64 [a], %d0; st.param.b64 [b], 0;
        call (n), vprintf, (a, b); ret; }"""
    )
    assert machine(capsys, "run", tmp_path / "k.ptx", "--block", 2)[1]["printed"] == "hi\nhi\n"
    assert cli.main(["machine", "run", str(tmp_path / "k.ptx"), "--block", "2"]) == 0
    assert "\nhi\nhi\n" in capsys.readouterr().out
