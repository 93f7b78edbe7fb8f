"""Contract under test: what a relaxed arrival at a cluster's barrier brings, and when a block at
whose mbarrier others arrive may end."""

from tests.emulator.ptx_cases import snippet
from tests.emulator.race_programs import fine, race

CLUSTER = {"grid": 2, "cluster": 2}
WAIT = snippet("cluster_wait")
RELAXED = snippet("cluster_arrive").replace("arrive", "arrive.relaxed") + WAIT
OTHER = (
    ".shared .align 8 .b64 b; .shared .u32 s; mov.u32 %r40, b; mov.u32 %r1, s;"
    + snippet("cluster_ctarank", "%r60")
    + "xor.b32 %r2, %r60, 1; setp.ne.u32 %q0, %t, 0; setp.ne.u32 %q1, %r60, 0;"
    + snippet("mapa_shared", "%r41", "%r40", "%r2")
    + snippet("mapa_shared", "%r3", "%r1", "%r2")
)
INIT = "@!%q0 mbarrier.init.shared.b64 [%r40], 1;\n"
FENCE = "fence.mbarrier_init.release.cluster;\n"
ARRIVE = "@!%q0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r41];\n"
SEE = "W: mbarrier.try_wait.parity.acquire.{}.shared.b64 %q5, [%r40], 0; @!%q5 bra W;\n"


def test_a_relaxed_arrival_brings_inits_that_are_fenced():
    """As CUTLASS begins: init, fence.mbarrier_init, a relaxed arrival, the wait; then the other
    block arrives."""
    body = OTHER + INIT + "{}" + RELAXED + ARRIVE + SEE.format("cluster")
    fine(body.format(FENCE), block=64, **CLUSTER)
    race(body.format(""), "missing-cluster-barrier", block=64, schedules=(None,), **CLUSTER)


def test_a_report_says_that_an_init_was_fenced():
    body = OTHER + INIT + FENCE + "mbarrier.test_wait.parity.shared.b64 %q5, [%r40], 1;"
    found = race(body, "missing-warp-sync", schedules=(None,), **CLUSTER)
    assert "has fenced it since, but nothing has brought that to this thread" in str(found)


def test_threads_of_the_block_itself_know_of_fenced_inits():
    body = OTHER + INIT + "{}" + RELAXED + "mbarrier.test_wait.parity.shared.b64 %q5, [%r40], 1;"
    fine(body.format(FENCE), block=64, **CLUSTER)
    race(body.format(""), "missing-warp-sync", schedules=(None,), **CLUSTER)


def test_the_fence_of_inits_releases_nothing_else():
    body = OTHER + INIT + "@!%q0 st.shared.u32 [%r1], 7;" + "{}" + RELAXED
    body += "@!%q0 ld.shared::cluster.u32 %r4, [%r3];"
    body += snippet("cluster_arrive") + WAIT
    fine(body.format("fence.acq_rel.cluster;"), **CLUSTER)
    for fence in (FENCE, "fence.acq_rel.cta;"):
        race(body.format(fence), "missing-cluster-barrier", schedules=(None,), **CLUSTER)


def test_a_block_may_end_when_it_has_seen_what_others_arrived_for():
    """In whichever scope it waits: the arrival is counted, and done with."""
    body = OTHER + INIT + FENCE + RELAXED + ARRIVE + "{}" + RELAXED
    for scope in ("cta", "cluster"):
        fine(body.format(SEE.format(scope)), **CLUSTER)
    race(body.format(""), "missing-wait-for-others", schedules=(None,), **CLUSTER)
    late = body.format(SEE.format("cta") + ARRIVE)
    race(late, "missing-wait-for-others", schedules=(None,), **CLUSTER)


def test_an_arrival_that_nobody_awaits_is_none_that_was_seen():
    """A second one of the same instruction, which releases nothing: its record is the first's."""
    again = ARRIVE.replace("release", "relaxed")
    body = OTHER + INIT + FENCE + RELAXED + "mov.u32 %r50, 0; L: " + again
    body += "setp.eq.u32 %q6, %r50, 1; @%q6 bra D; " + SEE.format("cta")
    body += RELAXED + "mov.u32 %r50, 1; bra L; D: "
    race(body + RELAXED, "missing-wait-for-others", schedules=(None,), **CLUSTER)
    both = SEE.format("cta").replace("W", "V").replace("], 0;", "], 1;")
    fine(body + both + RELAXED, **CLUSTER)
