"""Processes of one torch.distributed group, which call functions for a test: gloo on the CPU, NCCL
on GPUs. Nothing hangs: who does not answer in time is ended."""

import datetime
import multiprocessing
import traceback

import pytest
import torch
import torch.distributed as dist

TIMEOUT_S = 240  # a busy machine; of one call, and of a collective


class Ranks:
    """``ranks(function, *arguments)`` calls it in every process -> [result of each rank]. What is
    passed and returned is pickled; functions are those of a module."""

    def __init__(self, world: int, file, backend: str = "gloo"):
        context = multiprocessing.get_context("spawn")
        self.world, self.processes, self.pipes = world, [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, world, str(file), backend)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self.processes.append(process)
            self.pipes.append(ours)

    def __call__(self, function, *arguments):
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return [self._answer(rank) for rank in range(self.world)]

    def _answer(self, rank: int):
        try:
            if not self.pipes[rank].poll(TIMEOUT_S):
                raise EOFError("no answer in time")
            failed, answer = self.pipes[rank].recv()
        except EOFError as error:
            self.close()
            pytest.fail(f"rank {rank} is gone: {error}")
        if failed:
            self.close()  # the others may wait for it
            pytest.fail(f"rank {rank}:\n{answer}")
        return answer

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def close(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def _serve(pipe, rank, world, file, backend):
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{file}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:  # the test run is over
            return
        try:
            pipe.send((False, function(*arguments)))
        except Exception:
            pipe.send((True, traceback.format_exc()))
