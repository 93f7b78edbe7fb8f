"""Programs that the machine must find right, whatever it checks, under every Schedule: RIGHT, which
``test_checks`` runs. To add one of yours: a row. Bodies stand in ``ptx_cases.frame``; %p0 is the
address of ``x``, 256 words of zeros.
"""

from dataclasses import dataclass

from tests.emulator.planted_errors import ARRAYS, EXCHANGE

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


RIGHT = [
    Right(
        "a shuffle of which only the predicate is wanted, from lanes that have exited",
        """setp.ge.u32 %q0, %t, 20; @%q0 exit; shfl.sync.down.b32 _|%q1, %t, 16, 31, -1;
        selp.u32 %r1, 1, 0, %q1; """
        + STORE,
        x=(1,) * 16 + (0,) * 16,
    ),
    Right(
        "a sum of 20 lanes, of which lanes that do not matter take from outside",
        """mov.u32 %r1, 1; setp.ge.u32 %q0, %t, 20; @%q0 exit;
        shfl.sync.down.b32 %r2, %r1, 4, 31, -1; add.u32 %r1, %r1, %r2; setp.lt.u32 %q1, %t, 16;
        @%q1 st.global.u32 [%p0], %r1;""",
        x=(2,),
    ),
    Right(
        "a register that half of the lanes write and only they use",
        """setp.lt.u32 %q0, %t, 9; @%q0 mov.u32 %r5, 7; @%q0 add.u32 %r5, %r5, 1;
        mov.u32 %r1, 0; @%q0 mov.u32 %r1, %r5; """
        + STORE,
        x=(8,) * 9 + (0,),
    ),
    Right(
        "halves of a word written one after the other",
        """mov.b16 %h1, 3; mov.b32 %r1, {%h1, %h2}; and.b32 %r1, %r1, 0xffff; mov.b16 %h2, 1;
        """
        + STORE,
        x=(3,),
    ),
    Right(
        "groups of a warp, each with its mask, meet at one instruction",
        """setp.lt.u32 %q0, %t, 16; selp.u32 %r2, 0xffff, 0xffff0000, %q0;
        redux.sync.add.u32 %r1, 1, %r2; """
        + STORE,
        x=(16,) * 32,
    ),
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
    Right(
        "a swizzle, a base in front of the array, and one of two arrays",
        ARRAYS
        + """st.shared.u32 [%r2], %t; bar.warp.sync -1; xor.b32 %r2, %r2, 4; add.u32 %r2, %r2, -64;
        ld.shared.u32 %r1, [%r2+64]; setp.lt.u32 %q0, %t, 4; mov.u32 %r4, a; mov.u32 %r5, b;
        selp.b32 %r4, %r4, %r5, %q0; ld.shared.u32 %r6, [%r4]; """
        + STORE,
        x=(1, 0, 3, 2),
    ),
    Right(
        "an address becomes a local one before it is known to be one",
        """cvta.to.local.u64 %rd2, %p0; isspacep.local %q0, %p0; mov.u32 %r1, 5;
        @%q0 st.local.u32 [%rd2], %r1; """
        + STORE,
        x=(5,) * 32,
    ),
    Right(
        "an exchange between lanes with a barrier of the warp",
        EXCHANGE.format("", "bar.warp.sync -1;") + STORE,
        x=(1, 0, 3, 2),
    ),
]
