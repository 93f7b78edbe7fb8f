"""Does a GPU do with the instructions of ptx/ what the PTX machine does? One short visit to a GPU, the rest anywhere.

    python experiments/05_hardware/run.py hardware --save hardware.npz    # on a GPU: all probes, results or digests of them to hardware.npz, 20 s
    python experiments/05_hardware/run.py machine --save hardware.npz     # anywhere: the same probes on the PTX machine; rows to results.jsonl
    python experiments/05_hardware/run.py report                          # tables into README.md
"""
import argparse
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from numba_marlin.witness.catalogue import GROUPS, every_probe
from numba_marlin.witness.record import WHOLE


def hardware(args):
    from numba_marlin.witness.visit import LIMIT_SECONDS, meta, visit

    begun = time.perf_counter()
    arrays = visit(args.groups, args.limit or LIMIT_SECONDS, args.whole, say=lambda line: print(line, flush=True))
    with open(args.save, "wb") as file:
        np.savez_compressed(file, **arrays)
    about = meta(arrays)
    refused = {probe.name for probe in every_probe() if probe.refused}
    failed = {name: told["error"] for name, told in about["probes"].items() if "error" in told and name not in refused}
    for name, told in about["probes"].items():
        if name in refused or name in failed:
            print(f"{'FAILED' if name in failed else 'refused' if 'error' in told else 'NOT REFUSED'} {name}: {told.get('error', '')}")
    print(f"{about['device']}, CUDA {about['driver']}: {len(about['probes'])} probes, {len(failed)} failed; {args.save}: {args.save.stat().st_size / 1e6:.1f} MB; {time.perf_counter() - begun:.0f} s")
    return 1 if failed else 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("hardware", "machine", "report"))
    parser.add_argument("--save", type=Path, default=HERE / "hardware.npz", help="what came back from the GPU (default: hardware.npz beside this file)")
    parser.add_argument("--groups", type=lambda text: tuple(text.split(",")), default=GROUPS, help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--whole", type=int, default=WHOLE, help=f"results of up to so many elements are saved in full (default {WHOLE})")
    parser.add_argument("--limit", type=float, help="seconds for each process on the GPU")
    args = parser.parse_args(argv)
    return {"hardware": hardware}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
