"""``numba-marlin convert``: a quantised checkpoint in another format, one layer at a time, complete
or not at all."""

from __future__ import annotations

import time

HELP = (
    "convert a quantised checkpoint (GPTQ, AWQ, compressed-tensors, Marlin, ...) to another format"
)
EXAMPLES = """  numba-marlin convert llama-gptq/ llama-marlin/ --to marlin
  numba-marlin convert model.safetensors out.safetensors --to pack-quantized
  numba-marlin convert llama-gptq/ llama-awq/ --to awq --allow-loss"""

# Listed here because --help does not load NumPy; a test compares the list with the registry.
FORMATS = (
    "gptq",
    "gptq_v2",
    "awq",
    "marlin",
    "vllm-marlin",
    "pack-quantized",
    "modelopt-nvfp4",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "fp8",
    "fp8-block",
)


def add_arguments(parser) -> None:
    parser.add_argument("source", metavar="SRC", help="a .safetensors file, or a directory of them")
    parser.add_argument(
        "target",
        metavar="DST",
        help="must not exist: a file if it ends in .safetensors, else a directory",
    )
    parser.add_argument(
        "--to", required=True, metavar="FORMAT", help=f"one of {', '.join(FORMATS)}"
    )
    parser.add_argument(
        "--from",
        dest="source_format",
        metavar="FORMAT",
        help="the only format in which to look for layers (default: detected)",
    )
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="convert even if the format cannot hold everything; default: an error",
    )
    parser.add_argument(
        "--shard-bytes",
        type=float,
        default=5e9,
        metavar="B",
        help="largest file of a directory (default 5e9)",
    )


def execute(args, report) -> bool:
    from numba_marlin.checkpoints import convert, load_checkpoint
    from numba_marlin.checkpoints.companions import links_out
    from numba_marlin.cli.progress import bar
    from numba_marlin.formats.files import find_stored

    find_stored(args.to)
    if not args.shard_bytes >= 1:
        raise ValueError(f"--shard-bytes {args.shard_bytes:g} must be at least 1")
    # Before the work: what cannot be read must not be an error beside a finished target.
    before = load_checkpoint(args.source, args.source_format)
    start = time.perf_counter()
    with bar("converting", "bytes") as progress:
        target = convert(
            args.source,
            args.target,
            args.to,
            source_format=args.source_format,
            allow_loss=args.allow_loss,
            shard_bytes=int(min(args.shard_bytes, 2.0**62)),
            progress=progress,
        )
    seconds = time.perf_counter() - start
    after = load_checkpoint(target, args.to)
    nbytes = [sum(file.size for file in each.source.files.values()) for each in (before, after)]
    formats = [
        sorted({layer.form.name for layer in each.layers.values()}) for each in (before, after)
    ]
    report.row(
        "read",
        f"{args.source}: {len(before)} layers ({', '.join(formats[0])}), {len(before.others)} other"
        f" tensors, {nbytes[0]:,} bytes",
    )
    for each in before.source.contradictions():
        report.row("believed", each)
    links = links_out(before.source.directory) if before.source.path.is_dir() else []
    if links:
        report.row("links", f"not copied, as they lead out of {args.source}: {', '.join(links)}")
    report.row(
        "wrote",
        f"{target}: {len(after)} layers ({args.to}), {len(after.source.files)} file(s),"
        f" {nbytes[1]:,} bytes in {seconds:.1f} s, {nbytes[0] / seconds / 1e6:.0f} MB/s",
    )
    report.data = {
        "source": {
            "path": str(args.source),
            "formats": formats[0],
            "layers": len(before),
            "other_tensors": len(before.others),
            "bytes": nbytes[0],
            "links_not_copied": links,
            "contradictions": before.source.contradictions(),
        },
        "target": {
            "path": str(target),
            "format": args.to,
            "layers": len(after),
            "files": len(after.source.files),
            "bytes": nbytes[1],
        },
        "seconds": round(seconds, 3),
    }
    return True
