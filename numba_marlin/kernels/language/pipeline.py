"""A ring of shared-memory stages between the threads that fill them (the producer: one thread that
starts bulk copies, or several warps that store) and the warps that use them up (the consumers),
guarded by mbarriers: the verbs of both sides. (For the kernels with specialised warps; ``buffered``
and ``ampere`` guard stages by commit groups and syncthreads.)

Every stage has two barriers. *full*: the producer's arrivals are in and all bytes that it announced
have come. *empty*: all consumers are done with the stage. A *lap* is once round the ring; a barrier
completes one phase per lap. A phase has a parity, 0 for the first, 1 for the next, 0 again, and so
on; a wait names its phase by the parity. Both sides walk round the ring on their own, each with its
``RingPlace(stage, parity)``, two u32, which ``advance`` moves on: the stage's number, and the
parity of the phase to wait for, which changes from lap to lap. In the first lap consumers wait for
phase 0, the producer for the phase before it, of parity 1, which a new barrier counts as complete:
so it does not wait. The producer is ahead by ``stages`` stages at most:

    ring = pipeline_verbs(lang, stages, producers=1, consumers=8)
    one thread:    ring.initialise(barriers)                # then all: syncthreads
    the producer:  place = ring.producer_start()
                   ring.wait_empty(barriers, place)         # passes at once in the first lap
                   ring.expect(barriers, place, bytes)
                   copies that count against ring.full(barriers, place)
                   place = ring.advance(place)
    a consumer:    place = ring.consumer_start()
                   ring.wait_full(barriers, place); ... read ...
                   ring.release(barriers, place)            # one lane, after the warp's last read
                   place = ring.advance(place)

``barriers``: u32 address in shared memory of ``barrier_bytes(stages)`` bytes, a multiple of 8. PTX
ISA, "mbarrier".
"""

BARRIER_BYTES = 8
PAIR_BYTES = 2 * BARRIER_BYTES  # full, then empty


def barrier_bytes(stages: int) -> int:
    """Bytes of shared memory that the barriers of a ring of that many stages take."""
    return PAIR_BYTES * stages


def pipeline_verbs(lang, stages, producers, consumers):
    """-> namespace of device functions. producers, consumers: arrivals that complete a phase of a
    full and of an empty barrier."""
    ptx = lang.ptx
    RingPlace = lang.record("RingPlace", "stage parity")

    @lang.device
    def full(barriers, place):
        return barriers + place.stage * PAIR_BYTES

    @lang.device
    def empty(barriers, place):
        return barriers + place.stage * PAIR_BYTES + BARRIER_BYTES

    @lang.device
    def initialise(barriers):
        """One thread, before the barrier of the block that lets others in."""
        for stage in range(stages):
            ptx.mbarrier_init(barriers + PAIR_BYTES * stage, producers)
            ptx.mbarrier_init(barriers + (PAIR_BYTES * stage + BARRIER_BYTES), consumers)
        ptx.fence_mbarrier_init()

    @lang.device
    def producer_start():
        """Parity 1: a barrier on which no thread has arrived yet counts as having completed a phase
        of that parity, so the ring begins empty."""
        return RingPlace(0, 1)

    @lang.device
    def consumer_start():
        return RingPlace(0, 0)

    @lang.device
    def advance(place):
        stage = place.stage + 1
        around = stage == stages
        return RingPlace(0 if around else stage, place.parity ^ 1 if around else place.parity)

    @lang.device
    def wait_full(barriers, place):
        while not ptx.mbarrier_try_wait_parity(full(barriers, place), place.parity):
            pass

    @lang.device
    def wait_empty(barriers, place):
        while not ptx.mbarrier_try_wait_parity(empty(barriers, place), place.parity):
            pass

    @lang.device
    def expect(barriers, place, byte_count):
        """A producer's arrival on the full barrier: the stage is full when that many bytes have
        come too."""
        ptx.mbarrier_arrive_expect_tx(full(barriers, place), byte_count)

    @lang.device
    def release(barriers, place):
        """A consumer's arrival on the empty barrier, after all lanes that it arrives for have read
        and so passed their wait for the full one: one that still waited could meet the parity of a
        later phase."""
        ptx.mbarrier_arrive(empty(barriers, place))

    return lang.namespace(
        "ring",
        Place=RingPlace,
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
