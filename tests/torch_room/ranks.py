"""Processes of one torch.distributed group, which call functions for a test: gloo on the CPU, NCCL
on GPUs. Nothing hangs: who does not answer in time is ended.

With fewer GPUs than processes some share one. NCCL refuses that of processes of one host, so each
is told that it has a host of its own: they exchange through sockets then, not through NVLink.
"""

import datetime
import multiprocessing
import os
import traceback
from multiprocessing.connection import wait

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
        answers, waiting = {}, list(self.pipes)
        while waiting:
            # who answers first: one that failed may be why the others wait
            there = wait(waiting, TIMEOUT_S)
            if not there:
                late = [self.pipes.index(each) for each in waiting]
                self._fail(late[0], f"no answer in time, nor of any of {late}")
            for pipe in there:
                rank = self.pipes.index(pipe)
                answers[rank] = self._answer(rank)
                waiting.remove(pipe)
        return [answers[rank] for rank in range(self.world)]

    def _answer(self, rank: int):
        try:
            failed, answer = self.pipes[rank].recv()
        except EOFError as error:
            self._fail(rank, error)
        if failed:
            self._fail(rank, answer)
        return answer

    def _fail(self, rank: int, why):
        self.close()  # the others may wait for it
        pytest.fail(f"rank {rank}:\n{why}")

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
        gpus = torch.cuda.device_count()
        if gpus < world:
            os.environ |= {"NCCL_HOSTID": f"rank {rank}", "NCCL_IB_DISABLE": "1"}
        torch.cuda.set_device(rank % gpus)
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
