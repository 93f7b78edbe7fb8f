"""Contract under test: what is right passes, under every Schedule and with every check; what is
wrong is found where it is, in words that say what to do, and its right twin passes.

To add a program of yours: a row of RIGHT or of PLANTED. Bodies stand in ``ptx_cases.frame``; %p0 is
the address of ``x``, 256 words of zeros. In PLANTED the line with BAD is where the error is (of
several, one), and ``fix`` makes the twin: (what to replace, by what).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from numba_marlin.cli import main as cli
from numba_marlin.emulator import Machine, MachineError, Race, Schedule
from numba_marlin.emulator.checks import CHECKS, OWN, table
from tests.emulator.ptx_cases import frame

SCHEDULES = (
    None,
    Schedule(1),
    Schedule(2, "slowest warp", "late"),
    Schedule(3, "one block ahead", "early"),
    Schedule(4, "reverse"),
)
DOCS = Path(__file__).parents[2] / "docs" / "checks.md"
STORE = "mad.wide.u32 %rd1, %t, 4, %p0; st.global.u32 [%rd1], %r1;"


@dataclass(frozen=True)
class Right:
    name: str
    body: str
    threads: int = 32
    blocks: int = 1
    x: tuple = ()
    """The first words of x when it is done."""
    slow: bool = False
    """Takes more than the default suite has time for."""


@dataclass(frozen=True)
class Planted:
    name: str
    check: str
    body: str
    fix: tuple[str, str]
    words: str
    """That the message must contain."""
    threads: int = 32
    blocks: int = 1
    before: str = ""
    """Declarations of the module."""


RIGHT = [
    Right(
        "lanes exit before a vote",
        f"setp.ge.u32 %q0, %t, 20; @%q0 exit; vote.sync.ballot.b32 %r1, 1, -1; {STORE}",
        x=((1 << 20) - 1,) * 20 + (0,),
    ),
    Right(
        "lanes return to the end of the kernel before a barrier",
        f"setp.eq.u32 %q0, %t, 20; @%q0 bra OUT; bar.sync 0; mov.u32 %r1, 7;{STORE} OUT:",
        threads=64,
        x=(7,) * 20 + (0,) + (7,) * 43,
    ),
    Right(
        "lanes return to the end of the kernel before a shuffle",
        "mov.u32 %r1, %t; setp.ge.u32 %q0, %t, 16; @%q0 bra OUT;"
        f"shfl.sync.bfly.b32 %r1|%q1, %r1, 1, 31, -1; {STORE} OUT:",
        x=(1, 0, 3, 2),
    ),
    Right(
        "lanes return out of a loop one by one while the others vote",
        """mov.u32 %r5, 0; mov.u32 %r1, 0; L: setp.eq.u32 %q0, %r5, %t; @%q0 bra OUT;
        vote.sync.ballot.b32 %r1, 1, -1; add.u32 %r5, %r5, 1; bar.sync 0;
        setp.lt.u32 %q1, %r5, 20; @%q1 bra L; OUT: """
        + STORE,
        threads=64,
        x=(0, 0xFFFFFFFE, 0xFFFFFFFC),
    ),
    Right(
        "the first lane exits before an election",
        """setp.eq.u32 %q0, %t, 0; @%q0 exit; elect.sync %r1|%q1, -1; @!%q1 exit;
        st.global.u32 [%p0], %r1;""",
        x=(1,),
    ),
    Right(
        "lanes of a warp at barriers of both arms, none of them aligned",
        """.shared .u32 s; mov.u32 %r1, 0; setp.lt.u32 %q0, %t, 16; @%q0 bra A;
        barrier.sync 0; ld.shared.u32 %r1, [s]; bra E; A: setp.eq.u32 %q1, %t, 3;
        @%q1 st.shared.u32 [s], 5; barrier.sync 0; E: """
        + STORE,
        threads=64,
        x=(0,) * 16 + (5,) * 48,
    ),
    Right(
        "a spin lock taken by all lanes",
        """TRY: atom.acquire.gpu.global.cas.b32 %r1, [%p0], 0, 1; setp.ne.u32 %q0, %r1, 0;
        @%q0 bra TRY; ld.global.u32 %r2, [%p0+4]; add.u32 %r2, %r2, 1; st.global.u32 [%p0+4], %r2;
        atom.release.gpu.global.exch.b32 %r3, [%p0], 0;""",
        threads=4,
        x=(0, 4),
        slow=True,
    ),
    Right(
        "a spin lock with a back-off that counts",
        """mov.u32 %r9, 0; TRY: add.u32 %r9, %r9, 1;
        atom.acquire.gpu.global.cas.b32 %r1, [%p0], 0, 1; setp.ne.u32 %q0, %r1, 0; @%q0 bra TRY;
        ld.global.u32 %r2, [%p0+4]; add.u32 %r2, %r2, 1; st.global.u32 [%p0+4], %r2;
        atom.release.gpu.global.exch.b32 %r3, [%p0], 0;""",
        threads=2,
        x=(0, 2),
        slow=True,
    ),
    Right(
        "lanes produce what lanes of the same warp consume",
        """setp.ge.u32 %q0, %t, 16; @%q0 bra C; mad.wide.u32 %rd1, %t, 4, %p0;
        add.u32 %r1, %t, 100; st.global.u32 [%rd1+256], %r1; st.release.gpu.global.u32 [%rd1], 1;
        bra E; C: add.u32 %r2, %t, -16; mad.wide.u32 %rd1, %r2, 4, %p0;
        W: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.eq.u32 %q1, %r3, 0; @%q1 bra W;
        ld.global.u32 %r4, [%rd1+256]; st.global.u32 [%rd1+512], %r4; E:""",
        x=(1,) * 16 + (0,) * 48 + tuple(range(100, 116)),
    ),
]


def strict(program):
    """At most what strict finds, and the check of the program whatever its kind."""
    wrong = CHECKS[program.check].kind == "wrong"
    return "strict" if wrong else f"strict,{program.check}=error"


def launch(program, body, seed, races, checks="strict"):
    x = np.zeros(256, np.uint32)
    machine = Machine(frame(body, before=getattr(program, "before", "")), races, checks)
    address = machine.memory.buffer(x, "x").address
    result = machine.run(
        "k", program.blocks, program.threads, args=[address], seed=seed, max_instructions=200_000
    )
    return x, result


def by_name(programs):
    slow = {True: [pytest.mark.thorough], False: []}
    return [
        pytest.param(each, id=each.name, marks=slow[getattr(each, "slow", False)])
        for each in programs
    ]


@pytest.mark.parametrize("program", by_name(RIGHT))
def test_what_is_right_passes_under_every_schedule(program):
    for seed in SCHEDULES:
        x, _ = launch(program, program.body, seed, races=seed is None)
        assert tuple(x[: len(program.x)]) == program.x, seed


PLANTED = [
    Planted(
        "shared memory that nothing has written",
        "uninitialized-shared",
        """.shared .u32 s[64]; mov.u32 %r2, s; mad.lo.u32 %r2, %t, 4, %r2; st.shared.u32 [%r2], 1;
        ld.shared.u32 %r1, [%r2+128]; // BAD""",
        ("+128", "+0"),
        "which nothing has written",
    ),
    Planted(
        "local memory that nothing has written",
        "uninitialized-local",
        """.local .u32 l[4]; st.local.u32 [l], 1;
        ld.local.u32 %r1, [l+4]; // BAD""",
        ("l+4", "l"),
        "which nothing has written",
    ),
    Planted(
        "a bulk copy signals an mbarrier without a fence since its init",
        "mbarrier-init-fence",
        """.shared .align 16 .b8 d[128]; .shared .align 8 .b64 b; mov.u32 %r1, d; mov.u32 %r2, b;
        setp.ne.u32 %q0, %t, 0; @%q0 bra G; mbarrier.init.shared.b64 [%r2], 1; // FENCE
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%p0], 128, [%r2]; // BAD
        G: bar.sync 0; W: mbarrier.try_wait.parity.shared.b64 %q1, [%r2], 0; @!%q1 bra W;""",
        ("// FENCE", "fence.mbarrier_init.release.cluster;"),
        "no fence.mbarrier_init or fence.proxy.async since it was initialised",
    ),
    Planted(
        "a block ends without waiting for its bulk store",
        "bulk-store-at-end",
        """.shared .align 16 .b8 d[128]; mov.u32 %r1, d; mad.lo.u32 %r2, %t, 4, %r1;
        st.shared.u32 [%r2], 7; fence.proxy.async; bar.sync 0; setp.ne.u32 %q0, %t, 0; @%q0 bra E;
        cp.async.bulk.global.shared::cta.bulk_group [%p0], [%r1], 128; // BAD
        cp.async.bulk.commit_group; // WAIT
        E:""",
        ("// WAIT", "cp.async.bulk.wait_group 0;"),
        "the block ended, and this copy, never waited for, may still be reading",
    ),
]
PLANTED += [
    Planted(
        "all threads write the same value to one word",
        "benign-race",
        """setp.gt.u32 %q0, %t, 99;
        st.global.u32 [%p0], 7; // BAD""",
        (" st.global", " @%q0 st.global"),
        "benign: both write the same value",
        threads=101,
    ),
    Planted(
        "warps one after the other write the same value",
        "benign-race",
        """.shared .u32 s; setp.lt.u32 %q0, %t, 32;
        @%q0 st.shared.u32 [s], 7; // BAD: the later one
        bar.warp.sync -1; // BARRIER
        @!%q0 st.shared.u32 [s], 7; // BAD""",
        ("// BARRIER", "bar.sync 0;"),
        "benign: both write the same value",
        threads=64,
    ),
    Planted(
        "warps write different values to one word",
        "race",
        """shr.u32 %r1, %t, 5; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd2, %rd1, %p0;
        st.global.u32 [%p0], %r1; // BAD""",
        ("[%p0]", "[%rd2]"),
        "missing-barrier",
        threads=64,
    ),
]
UNDEFINED = [each for each in PLANTED if CHECKS[each.check].kind != "wrong"]


def check_of(error):
    return error.check or ("race" if isinstance(error, Race) else error.kind)


def marked(body):
    return " ".join(" ".join(line for line in body.splitlines() if "BAD" in line).split())


@pytest.mark.parametrize("program", by_name(PLANTED))
def test_a_planted_error_is_found_where_it_is(program):
    for seed in SCHEDULES:
        with pytest.raises(MachineError) as caught:
            launch(program, program.body, seed, True, strict(program))
        error = caught.value
        assert check_of(error) == program.check, seed
        assert program.words in str(error) and error.text in marked(program.body), seed


@pytest.mark.parametrize("program", by_name(PLANTED))
def test_its_right_twin_passes(program):
    assert program.fix[0] in program.body
    for seed in SCHEDULES:
        _, result = launch(program, program.body.replace(*program.fix), seed, True, "style")
        assert not result.warnings


@pytest.mark.parametrize("program", by_name(UNDEFINED))
def test_what_works_on_chips_is_one_warning_and_the_run_goes_on(program):
    _, result = launch(program, program.body, None, True, f"hardware,{program.check}=warn")
    assert [each.check for each in result.warnings] == [program.check]
    assert result.warnings[0].text in marked(program.body)
    _, result = launch(program, program.body, None, True, f"hardware,{program.check}=off")
    assert not result.warnings


def test_every_check_with_a_name_of_its_own_has_a_program():
    assert {check.name for check in OWN} <= {program.check for program in PLANTED}


def test_the_table_in_docs_is_made_from_the_code():
    assert DOCS.read_text(encoding="utf-8") == table(), "write what table() gives to docs/checks.md"


@pytest.mark.parametrize(
    "checks, rule",
    [
        ("hard", "must begin with one of strict, hardware, style"),
        ("strict,benign=off", "there is no check 'benign'"),
        ("strict,benign-race=no", "must be benign-race=error, =warn or =off"),
        ("hardware,out-of-bounds=off", "wrong on every machine and always an error"),
    ],
)
def test_what_cannot_be_chosen_is_refused_by_name(checks, rule):
    with pytest.raises(ValueError, match=rule):
        Machine(frame(""), checks=checks)


def test_the_command_line_chooses_too(tmp_path, capsys):
    program = PLANTED[0]
    path = tmp_path / "k.ptx"
    path.write_text(frame(program.body), encoding="utf-8")
    words = ["machine", "run", str(path), "--args", "out:u32[256]", "--no-races"]
    assert cli.main(words) == 1 and "checks='hardware'" in capsys.readouterr().err
    assert cli.main([*words, "--checks", "hardware"]) == 0
    assert "uninitialized-shared: UninitializedRead" in capsys.readouterr().out
    assert cli.main([*words, "--checks", "loose"]) != 0 and "loose" in capsys.readouterr().err
