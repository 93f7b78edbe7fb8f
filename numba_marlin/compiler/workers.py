"""Compiles many kernels at once, in processes of their own: a compiler uses one core, and keeps
some 15 MB of every kernel that it has compiled.

    for job, answer in compile_in_processes(jobs, processes=8):  # in the order in which they end

A worker is a fresh interpreter that never imports the caller's ``__main__``: a script may call this
from its top level (``multiprocessing`` would run the script again in every worker). It gets jobs
and gives answers as pickles, through pipes; an answer holds the bytes of a cache entry, which the
caller stores. Nothing is written by a worker itself, so one that is killed leaves nothing behind.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

KERNELS_PER_PROCESS = 16  # then a fresh one takes over: 15 MB each, beside 300 to start with
_GRACE = 2.0  # seconds that a worker has to remove its temporary files
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from numba_marlin.compiler.workers import serve; serve()"
)


@dataclass(frozen=True)
class Job:
    """A kernel or pass, by name, in a configuration, for a target, by a compiler."""

    kernel: str
    config: object
    target: str
    compiler: str


@dataclass(frozen=True)
class Answer:
    """entry: the kernel as the disk cache has it (``compiled.to_bytes``), or None; error: the name
    of the exception's type and its message, if there is no entry; seconds: of compilation."""

    entry: bytes | None
    error: tuple[str, str] | None
    seconds: float


def compile_in_processes(jobs: Iterable[Job], processes: int) -> Iterator[tuple[Job, Answer]]:
    """Compile the jobs in at most ``processes`` workers, and yield (job, Answer) as they end. A job
    whose worker dies has an answer that says so. Leaving the loop early, also by Ctrl-C, ends the
    workers at once (use ``contextlib.closing`` where an exception may end it)."""
    waiting = collections.deque(jobs)
    pool = _Pool(waiting)
    try:
        expected = len(waiting)
        pool.start(min(processes, expected))
        for _ in range(expected):
            yield pool.answers.get()
        pool.join()
    finally:
        pool.stop()


class _Pool:
    """Threads, each of which hands jobs to a worker and waits for its answers."""

    def __init__(self, waiting: collections.deque):
        self.waiting = waiting
        self.answers: queue.SimpleQueue = queue.SimpleQueue()
        self.lock = threading.Lock()  # of the two below
        self.stopped = False
        self.workers: set[_Worker] = set()
        self.threads: list[threading.Thread] = []

    def start(self, threads: int) -> None:
        for _ in range(threads):
            thread = threading.Thread(target=self._work, daemon=True)
            self.threads.append(thread)
            thread.start()

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            workers = list(self.workers)
        for worker in workers:
            worker.interrupt()
        deadline = time.monotonic() + _GRACE
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self.join()

    def join(self) -> None:
        for thread in self.threads:
            thread.join()

    def _work(self) -> None:
        worker = None
        while True:
            try:
                job = self.waiting.popleft()
            except IndexError:
                break
            try:
                if worker is None or not worker.fit:
                    self._dismiss(worker)
                    worker = self._hire()
                    if worker is None:
                        return
                answer = worker.compile(job)
            except Exception as error:  # no process can be started: every job gets its answer
                answer = Answer(None, (type(error).__name__, str(error)), 0.0)
            self.answers.put((job, answer))
        self._dismiss(worker)

    def _hire(self) -> _Worker | None:
        """A new worker; None once the pool is stopped."""
        with self.lock:
            if self.stopped:
                return None
            worker = _Worker()
            self.workers.add(worker)
            return worker

    def _dismiss(self, worker: _Worker | None) -> None:
        if worker is not None:
            worker.end(None)
            worker.process.stdout.close()
            with self.lock:
                self.workers.discard(worker)


class _Worker:
    """A process that runs ``serve``."""

    def __init__(self):
        self.compiled, self.dead = 0, False
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=[str(each) for each in sys.path])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def fit(self) -> bool:
        return not self.dead and self.compiled < KERNELS_PER_PROCESS

    def compile(self, job: Job) -> Answer:
        self.compiled += 1
        start = time.perf_counter()
        try:
            pickle.dump(job, self.process.stdin)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.dead = True
            self.end(_GRACE)
            code = self.process.returncode
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return Answer(
                None,
                ("ChildProcessError", f"the process that compiled it {how}; is memory short?"),
                time.perf_counter() - start,
            )

    def interrupt(self) -> None:
        """Ask the process to end, as Ctrl-C does."""
        if os.name == "nt":
            self.process.terminate()
        else:
            self.process.send_signal(signal.SIGINT)

    def end(self, seconds: float | None) -> None:
        """Wait until the process has ended; kill it if that takes longer. None: it has no work, and
        ends when it sees that none will come."""
        if seconds is None:
            with contextlib.suppress(OSError):  # it is dead, and cannot take what was left to send
                self.process.stdin.close()
        try:
            self.process.wait(_GRACE if seconds is None else seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve() -> None:
    """The life of a worker: jobs from stdin, answers to stdout, until stdin ends."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a compiler prints must not get between the answers
    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        pickle.dump(_answer(job), answers)
        answers.flush()


def _answer(job: Job) -> Answer:
    from numba_marlin.compiler.builder import build
    from numba_marlin.compiler.compiled import to_bytes
    from numba_marlin.kernels.registry import find_definition

    start, entry, error = time.perf_counter(), None, None
    try:
        kernel = find_definition(job.kernel)
        entry = to_bytes(build(kernel, job.config, job.target, job.compiler, cache=False))
    except Exception as failure:
        error = type(failure).__name__, str(failure)
    return Answer(entry, error, time.perf_counter() - start)
