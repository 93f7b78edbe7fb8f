"""How fast does a GPU pack and unpack codes? Target: 1 TB/s of codes on an H200.

    python experiments/22_packing_gpu/run.py measure     # needs a GPU and torch; under a minute
    python experiments/22_packing_gpu/run.py report      # the tables into README.md

The kernels of ``numba_marlin.kernels.packing`` (a byte of codes in or out for each weight), cold
L2, CUDA graphs, in the same interleaved rounds as a copy from device to device that moves as many
bytes: those read and those written add up to the kernel's. Every result is checked first.
``read_words`` makes codes of the words of a checkpoint's file, in three orders (4 bits). Then, by
the host's clock, a whole ``nm.pack(q, place="cuda:0")``, which uploads the codes, or, of a
StoredWeight, the file's words, beside packing on the host and uploading what that made. Rows are
appended to results.jsonl; the newest of a cell counts. A row's ``limit_codes_per_s`` is modelled:
instructions and sectors that the PTX machine counts, over the issue rate and the memory bandwidth
of the data sheet.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

import numpy as np

from numba_marlin.bench import rows
from numba_marlin.bench.tables import markdown, origin, replace_between

RESULTS = HERE / "results.jsonl"
KERNELS, FILES_READ, CALLS = (
    ("<!-- kernels: begin -->", "<!-- kernels: end -->"),
    ("<!-- read_words: begin -->", "<!-- read_words: end -->"),
    ("<!-- calls: begin -->", "<!-- calls: end -->"),
)
SHAPES = ((4096, 4096), (8192, 8192), (8192, 28672), (4096, 11048))  # the last: a ragged n
BITS = (4, 8)
TARGET_CODES_PER_S = 1e12
GATED = ("pack", "unpack", "read_words")  # kernels that it is asked of
ISSUED_PER_CYCLE = 4  # warp instructions of an SM: one for each of its schedulers
COUNTED = (64, 512)  # k and n of what the PTX machine counts


def definitions():
    from numba_marlin.kernels.packing import PACK, UNPACK

    return {"pack": PACK, "unpack": UNPACK}


def streams():
    """{order of a file's words: how codes lie in them}"""
    from numba_marlin.formats.gptq import AWQ_ORDER
    from numba_marlin.formats.streams import Stream

    return {
        "along_k": Stream("k", "k"),
        "transposed": Stream("k", "n"),
        "interleaved": Stream("n", "k", order=AWQ_ORDER),
    }


def limit(name, bits, device):
    """Codes a second that a kernel cannot exceed, modelled."""
    from numba_marlin.counts import count
    from numba_marlin.emulator import Machine
    from numba_marlin.execution import packing
    from numba_marlin.execution.machine import set_up
    from numba_marlin.formats import marlin
    from numba_marlin.kernels.packing import CodeBits

    k, n = COUNTED
    codes = np.random.default_rng(0).integers(0, 1 << bits, (k, n), dtype=np.uint8)
    given = {"codes": codes} if name == "pack" else {"words": marlin.pack_codes(codes, bits)}
    binding = packing.binding(definitions()[name], CodeBits(bits), k, n, "sm_90a", given)
    machine = Machine(binding.compiled.ptx)
    result, counts = count(machine, **set_up(binding, machine=machine).launch)
    issued = device.sms * ISSUED_PER_CYCLE * device.clock_mhz * 1e6 * k * n / result.instructions
    touched = 32 * counts.total.sectors / (k * n)  # bytes a code
    return min(issued, device.bandwidth_bytes / touched)


def row_of(kernel, bits, k, n, us, environment, **more):
    """us: one for each round."""
    low, _, high = statistics.quantiles(us, n=4)
    median = statistics.median(us)
    return {
        "kernel": kernel,
        "config": {"bits": bits, **more.pop("config", {})},
        "compiler": "numba-cuda",
        "kind": "measured",
        "m": 1,
        "n": n,
        "k": k,
        "group_size": -1,
        "bits": bits,
        "us": round(median, 3),
        "us_spread": [round(low, 3), round(high, 3)],
        "us_min": round(min(us), 3),
        "us_max": round(max(us), 3),
        "codes_per_s": round(k * n / median * 1e6),
        **more,
        **environment,
    }


def kernels_of(k, n, bits, rounds, l2_bytes):
    """({name: microseconds of each round} of pack, unpack, copy, and of 4 bits the orders of
    ``streams``; bytes that each of them moves)"""
    import torch

    from numba_marlin import hostloops
    from numba_marlin.bench.timing import GraphTimer, interleave
    from numba_marlin.execution import packing
    from numba_marlin.formats.marlin import packed_columns
    from numba_marlin.kernels.packing import CodeBits

    ordinal = torch.cuda.current_device()
    words_shape = k // 16, packed_columns(n) * bits // 2
    moved = k * n + 4 * words_shape[0] * words_shape[1]
    copies = max(2, -(-4 * l2_bytes // moved))  # so that a launch finds nothing in L2
    codes = torch.randint(0, 1 << bits, (copies, k, n), dtype=torch.uint8, device="cuda")
    words = torch.zeros((copies, *words_shape), dtype=torch.int32, device="cuda")
    # a copy reads what it writes: half of the bytes that a kernel moves
    source = torch.zeros((copies, moved // 2), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def launch(name, index, codes=codes):
        addresses = {
            "codes": codes[index % copies].data_ptr(),
            "words": words[index % copies].data_ptr(),
        }
        stream = torch.cuda.current_stream().cuda_stream
        packing.enqueue(definitions()[name], CodeBits(bits), k, n, addresses, ordinal, stream)

    for index in range(copies):
        launch("pack", index)
    back = torch.zeros_like(codes)
    for index in range(copies):
        launch("unpack", index, back)
    torch.cuda.synchronize()
    if not torch.equal(back, codes):
        raise SystemExit(f"wrong result: {k} x {n}, {bits} bits did not survive a round trip")
    del back
    expected = hostloops.pack_marlin_codes(codes[0].cpu().numpy(), bits)
    if not np.array_equal(words[0].cpu().numpy(), expected):
        raise SystemExit(f"wrong result: {k} x {n}, {bits} bits differ from the host's")
    timers = {} if bits != 4 else readers(codes, copies, k, n, ordinal)
    timers |= {
        "pack": GraphTimer(lambda index: launch("pack", index), least=copies),
        "unpack": GraphTimer(lambda index: launch("unpack", index), least=copies),
        "copy": GraphTimer(
            lambda index: target[index % copies].copy_(source[index % copies]), least=copies
        ),
    }
    return interleave(timers, rounds), moved


def readers(codes, copies, k, n, ordinal):
    """{order: its timer} of the kernel that reads the words of files, 4 bits."""
    import torch

    from numba_marlin.bench.timing import GraphTimer
    from numba_marlin.execution import packing
    from numba_marlin.hostloops import Compiled
    from numba_marlin.kernels.packing import READ_WORDS

    plain = codes[0].cpu().numpy()
    rows = torch.arange(k, dtype=torch.int32, device="cuda")
    made = torch.zeros_like(codes)

    def timer(stream):
        file = torch.from_numpy(Compiled().pack(stream, plain, 4)).cuda()
        words, form = file.repeat(copies, 1, 1), packing.file_words(stream, 4)

        def launch(index):
            addresses = {
                "words": words[index % copies].data_ptr(),
                "rows": rows.data_ptr(),
                "codes": made[index % copies].data_ptr(),
            }
            handle = torch.cuda.current_stream().cuda_stream
            packing.enqueue(READ_WORDS, form, k, n, addresses, ordinal, handle)

        made.zero_()
        launch(0)
        torch.cuda.synchronize()
        if not torch.equal(made[0], codes[0]):
            raise SystemExit(f"wrong result: {k} x {n}, {form.order}")
        return GraphTimer(launch, least=copies)

    return {order: timer(stream) for order, stream in streams().items()}


def calls_of(k, n, bits, rounds):
    """{name: microseconds of each round} of whole calls, by the host's clock."""
    import torch

    import numba_marlin as nm
    from numba_marlin.formats.stored import StoredWeight
    from numba_marlin.hostloops import Compiled

    codes = np.random.default_rng(0).integers(0, 1 << bits, (k, n), dtype=np.uint8)
    scales = np.ones((k // 128, n), np.float16)
    q = nm.QuantizedWeight(codes, scales, None, bits, 128)
    along = streams()["along_k"]
    file = Compiled().pack(along, codes, bits)
    stored = StoredWeight(file, along, bits, scales, None, 128, k, n)
    there = nm.pack(q, place="cuda:0")
    found = {
        "nm.pack(q, place)": lambda: nm.pack(q, place="cuda:0"),
        "nm.pack(stored, place)": lambda: nm.pack(stored, place="cuda:0"),
        "nm.pack(stored).to(place)": lambda: nm.pack(stored).to("cuda:0"),
        "nm.pack(q).to(place)": lambda: nm.pack(q).to("cuda:0"),
        "nm.unpack(p) of a device": lambda: nm.unpack(there),
        "nm.unpack(p.to('cpu'))": lambda: nm.unpack(there.to("cpu")),
    }
    of_file = nm.pack(stored, place="cuda:0")
    if not all(np.array_equal(nm.unpack(p).codes, codes) for p in (there, of_file)):
        raise SystemExit("wrong result of nm.pack and nm.unpack on the device")
    times = {name: [] for name in found}
    for number in range(rounds + 1):
        for name, call in found.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            if number:  # the first loads and compiles
                times[name].append((time.perf_counter() - begin) * 1e6)
    return times


def measure(args):
    from numba_marlin.bench import environment
    from numba_marlin.bench.timing import torch_on_gpu
    from numba_marlin.execution import driver

    torch = torch_on_gpu()
    torch.manual_seed(0)
    device = driver.describe(torch.cuda.current_device())
    described = environment.describe(device.name)
    limits = {
        (name, bits): limit(name, bits, device)
        for name in definitions()
        for bits in BITS
        if device.bandwidth_bytes
    }
    results = Path(os.environ.get("OUT", HERE)) / "results.jsonl"
    with rows.Recorder(None if args.no_record else results) as out:
        for bits in BITS:
            for k, n in SHAPES:
                times, moved = kernels_of(k, n, bits, args.rounds, device.l2_bytes)
                copied = statistics.median(times["copy"])
                for name, us in times.items():
                    more = {"bytes": moved, "of_copy": round(copied / statistics.median(us), 3)}
                    if (name, bits) in limits:
                        more["limit_codes_per_s"] = round(limits[name, bits])
                    kernel = "read_words" if name in streams() else name
                    more["config"] = {"order": name} if kernel == "read_words" else {}
                    row = row_of(kernel, bits, k, n, us, described, **more)
                    out.write(row)
                    print(
                        f"{bits} bits {k} x {n}: {name:11} {row['us']:8.1f} us"
                        f" {row['codes_per_s'] / 1e12:.2f} TB/s of codes,"
                        f" {row['of_copy']:.2f} of a copy",
                        flush=True,
                    )
        k, n = SHAPES[2]
        for name, us in calls_of(k, n, 4, args.calls).items():
            row = row_of(name, 4, k, n, us, described, config={"call": name})
            out.write(row)
            print(
                f"{name:26} {row['us'] / 1e3:8.1f} ms {row['codes_per_s'] / 1e9:.1f} GB/s of codes"
            )


def kernel_table(found):
    """A line per shape and size of codes: TB/s of codes, and the share of a copy's speed."""
    by = {(row["kernel"], row["bits"], row["k"], row["n"]): row for row in found}
    lines = []
    for bits in BITS:
        for k, n in SHAPES:
            cells = [f"{bits}", f"{k} x {n}"]
            for name in ("pack", "unpack"):
                row = by[name, bits, k, n]
                most = row.get("limit_codes_per_s")
                cells += [
                    f"{row['us']:.1f}",
                    f"{row['codes_per_s'] / 1e12:.2f}",
                    "" if most is None else f"{most / 1e12:.2f}",
                    f"{row['of_copy']:.2f}",
                ]
            lines.append([*cells, f"{by['copy', bits, k, n]['us']:.1f}"])
    heads = [
        f"{name} {what}"
        for name in ("pack:", "unpack:")
        for what in ("us", "TB/s of codes", "at most (modelled)", "of a copy")
    ]
    return markdown(["bits", "k x n", *heads, "copy: us"], lines, left=2)


def words_table(found):
    """A line per shape: TB/s of codes out of each order of a file's words, 4 bits."""
    by = {
        (row["config"]["order"], row["k"], row["n"]): row
        for row in found
        if row["kernel"] == "read_words"
    }
    lines = [
        [
            f"{k} x {n}",
            *(f"{by[order, k, n]['codes_per_s'] / 1e12:.2f}" for order in streams()),
            *(f"{by[order, k, n]['of_copy']:.2f}" for order in streams()),
        ]
        for k, n in SHAPES
    ]
    heads = [f"{order}{what}" for what in (": TB/s of codes", ": of a copy") for order in streams()]
    return markdown(["k x n", *heads], lines)


def call_table(found):
    lines = [
        [f"`{row['kernel']}`", f"{row['us'] / 1e3:.1f}", f"{row['codes_per_s'] / 1e9:.1f}"]
        for row in found
        if "call" in row["config"]
    ]
    return markdown(["call", "ms", "GB/s of codes"], lines)


def report(args):
    found = list(rows.newest(rows.read(RESULTS)).values())
    slow = [
        row
        for row in found
        if row["kernel"] in ("pack", "unpack", "read_words")
        and row["codes_per_s"] < TARGET_CODES_PER_S
    ]
    verdict = (
        "The target, 1 TB/s of codes, is reached in every row."
        if not slow
        else f"The target, 1 TB/s of codes, is missed in {len(slow)} measurements."
    )
    page = HERE / "README.md"
    replace_between(page, KERNELS, f"{kernel_table(found)}\n\n{verdict}\n\n{origin(found)}")
    replace_between(page, FILES_READ, words_table(found))
    replace_between(page, CALLS, call_table(found))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--rounds", type=int, default=9)
    measuring.add_argument("--calls", type=int, default=3, help="rounds of whole calls")
    measuring.add_argument("--no-record", action="store_true", help="print only")
    measuring.set_defaults(run=measure)
    commands.add_parser("report").set_defaults(run=report)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
