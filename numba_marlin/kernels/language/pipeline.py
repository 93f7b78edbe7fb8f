"""A ring of shared-memory stages between one warp that fills them and the warps that use them up,
guarded by mbarriers: the verbs of both sides.

Every stage has two barriers. *full*: the producer's arrivals are in and all bytes that it announced
have come. *empty*: all consumers are done with the stage. A phase of a barrier has a parity, 0 for
the first, 1 for the next, and so on: who waits says which phase by its parity. Both sides walk
round the ring on their own, each with its ``place``, a tuple (stage, parity) that ``advance`` moves
on:

    verbs = pipeline_verbs(lang, stages, producers=1, consumers=8)          # arrivals that complete
        a phase of full, of empty
    one thread:     verbs.initialise(barriers); then all: syncthreads
    the producer:   place = verbs.producer_start()
                    verbs.wait_empty(barriers, place)                       # passes at once in the
                        first round
                    verbs.expect(barriers, place, bytes); copies that count against
                        verbs.full(barriers, place)
                    place = verbs.advance(place)
    a consumer:     place = verbs.consumer_start()
                    verbs.wait_full(barriers, place); ... read ...
                    verbs.release(barriers, place)                          # one lane of the warp,
                        after the warp's last read
                    place = verbs.advance(place)

``barriers``: u32 address in shared memory of ``barrier_bytes(stages)`` bytes, a multiple of 8. PTX
ISA, "mbarrier".
"""

from types import SimpleNamespace

BARRIER_BYTES = 8


def barrier_bytes(stages: int) -> int:
    """Bytes of shared memory that the barriers of a ring of that many stages take."""
    return 2 * BARRIER_BYTES * stages


def pipeline_verbs(lang, stages, producers, consumers):
    """-> namespace of device functions. producers, consumers: arrivals that complete a phase of a
    full and of an empty barrier."""
    ptx, uint32 = lang.ptx, lang.uint32
    STAGES, PRODUCERS, CONSUMERS = stages, producers, consumers

    @lang.device
    def full(barriers, place):
        return barriers + place[0] * uint32(2 * BARRIER_BYTES)

    @lang.device
    def empty(barriers, place):
        return barriers + place[0] * uint32(2 * BARRIER_BYTES) + uint32(BARRIER_BYTES)

    @lang.device
    def initialise(barriers):
        """One thread, before the barrier of the block that lets others in."""
        for stage in range(STAGES):
            ptx.mbarrier_init(barriers + uint32(2 * BARRIER_BYTES * stage), uint32(PRODUCERS))
            ptx.mbarrier_init(
                barriers + uint32(2 * BARRIER_BYTES * stage + BARRIER_BYTES), uint32(CONSUMERS)
            )
        ptx.fence_mbarrier_init()

    @lang.device
    def producer_start():
        """Parity 1: a barrier on which nobody has arrived yet counts as having completed a phase of
        that parity, so the ring begins empty."""
        return uint32(0), uint32(1)

    @lang.device
    def consumer_start():
        return uint32(0), uint32(0)

    @lang.device
    def advance(place):
        stage = uint32(place[0] + uint32(1))
        around = stage == uint32(STAGES)
        return uint32(0) if around else stage, uint32(place[1] ^ uint32(1)) if around else place[1]

    @lang.device
    def wait_full(barriers, place):
        while ptx.mbarrier_try_wait_parity(full(barriers, place), place[1]) == uint32(0):
            pass

    @lang.device
    def wait_empty(barriers, place):
        while ptx.mbarrier_try_wait_parity(empty(barriers, place), place[1]) == uint32(0):
            pass

    @lang.device
    def expect(barriers, place, byte_count):
        """A producer's arrival on the full barrier: the stage is full when that many bytes have
        come too."""
        ptx.mbarrier_arrive_expect_tx(full(barriers, place), byte_count)

    @lang.device
    def release(barriers, place):
        """A consumer's arrival on the empty barrier."""
        ptx.mbarrier_arrive(empty(barriers, place))

    return SimpleNamespace(
        full=full,
        empty=empty,
        initialise=initialise,
        producer_start=producer_start,
        consumer_start=consumer_start,
        advance=advance,
        wait_full=wait_full,
        wait_empty=wait_empty,
        expect=expect,
        release=release,
    )
