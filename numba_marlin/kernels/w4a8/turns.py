"""Two warpgroups that take turns to multiply."""

from numba_marlin.kernels.hopper.shared import WARPGROUP

TURN = 1  # and 2: named barriers; 0 is syncthreads
MEETING = TURN + 2  # and the next: where each warpgroup meets in the epilogue


def turn_verbs(lang, config):
    """-> namespace: ``open``, ``wait``, ``give_over``, ``close``: device functions of a warpgroup's
    number, with which two warpgroups take turns to multiply, number 0 first. Named barrier TURN +
    w: it is w's turn; w waits, the other arrives. ``open`` and ``close`` come before the first turn
    and after the last: of either barrier there are as many arrivals as waits."""
    ptx = lang.ptx
    threads = 2 * WARPGROUP

    @lang.device
    def wait(warpgroup):
        ptx.bar_sync(TURN + warpgroup, threads)

    @lang.device
    def give_over(warpgroup):
        ptx.bar_arrive(TURN + 1 - warpgroup, threads)

    @lang.device
    def begin(warpgroup):
        if warpgroup == 1:
            give_over(warpgroup)

    @lang.device
    def end(warpgroup):
        if warpgroup == 0:
            wait(warpgroup)

    return lang.namespace("turns", open=begin, wait=wait, give_over=give_over, close=end)
