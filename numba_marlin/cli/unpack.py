"""``numba-marlin unpack``: shows packed codes bit by bit, with their k, n and value.

The codes are those of a layer of a checkpoint, or of a random layer in any format.
"""

from __future__ import annotations

from numba_marlin.wording import did_you_mean

HELP = "decode words of packed codes, bit by bit: which weights, and their values"
RANDOM = "a random layer"
EXAMPLES = """\
  numba-marlin unpack                                   Marlin's layout, a random layer
  numba-marlin unpack --format awq --k 3 --n 12         where is this weight?
  numba-marlin unpack --format gptq --bits 3 --words 3  codes that straddle words
  numba-marlin unpack --format marlin --word 0,37 --html word.html
  numba-marlin unpack llama-gptq/ --layer model.layers.0.mlp.up_proj --k 5 --n 7"""
DEMO_K, DEMO_N = 128, 64


def add_arguments(parser) -> None:
    from numba_marlin.cli.pages import add_page_arguments, add_view_argument

    parser.add_argument(
        "source",
        metavar="SRC",
        nargs="?",
        help="a .safetensors file, or a directory of them (default: a random layer)",
    )
    parser.add_argument(
        "--layer", metavar="NAME", help="which layer of SRC (default: the only one, else the first)"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="the format: of a random layer (default marlin), or to read SRC as",
    )
    parser.add_argument(
        "--bits",
        type=int,
        metavar="B",
        help="bits of a code of a random layer (default: 4, or what the format has)",
    )
    parser.add_argument(
        "--tensor",
        metavar="NAME",
        help="which tensor of the layer (default: the one that packs the weight)",
    )
    parser.add_argument("--word", metavar="ROW,COLUMN", help="a word of it (default 0,0)")
    parser.add_argument(
        "--k", type=int, metavar="K", help="the word, or words, with the code of this row ..."
    )
    parser.add_argument("--n", type=int, metavar="N", help="... and column")
    parser.add_argument(
        "--words",
        type=int,
        default=1,
        metavar="COUNT",
        help="number of words, along the row (default 1)",
    )
    add_view_argument(parser)
    add_page_arguments(parser)


def execute(args, report) -> bool:
    from numba_marlin.cli import pages
    from numba_marlin.profile.pages import word_page

    pages.check_page_arguments(args)

    if (args.k is None) != (args.n is None):
        raise ValueError("--k and --n go together: row and column of a weight")
    if args.word is not None and args.k is not None:
        raise ValueError("--word and --k, --n exclude each other: both say which word")
    if args.words < 1:
        raise ValueError(f"--words {args.words} must be at least 1")
    layer, source = _layer(args)
    tensor = layer.packed[0] if args.tensor is None else args.tensor
    if tensor not in layer.packed:
        raise ValueError(
            f"--tensor {tensor} must be one that holds packed codes: {', '.join(layer.packed)}"
            f"{did_you_mean(tensor, layer.packed)}"
        )
    words = tuple(layer.word(tensor, *place) for place in _places(args, layer, tensor))
    chosen = None if args.k is None else (args.k, args.n)
    ok = all(field.agrees for word in words for field in word.fields)
    report.data = {
        "format": layer.form.name,
        "source": source,
        "k": layer.geometry.k,
        "n": layer.geometry.n,
        "code_bits": layer.geometry.bits,
        "group_size": layer.geometry.group,
        "words": [word.to_dict() for word in words],
    }
    page = pages.viewed(word_page.page(layer, words, source, chosen), args)
    pages.show(page, args, report, failed=not ok)
    return ok


def _layer(args):
    from numba_marlin.profile.sources.words import Layer

    if args.source is None:
        if args.layer is not None:
            raise ValueError("--layer needs SRC, a checkpoint")
        from numba_marlin.formats.files import find_stored
        from numba_marlin.profile.sources.random_layers import random_layer

        form = find_stored(args.format or "marlin")
        return (
            Layer(form, random_layer(form, DEMO_K, DEMO_N, args.bits, args.seed)),
            f"random, seed {args.seed}",
        )
    from numba_marlin.checkpoints import load_checkpoint
    from numba_marlin.checkpoints.checkpoint import codec_for

    if args.bits is not None:
        raise ValueError("--bits is for a random layer; SRC decides for its own")
    checkpoint = load_checkpoint(args.source, args.format)
    if not checkpoint.layers:
        raise ValueError(f"{args.source} holds no quantised layer")
    name = next(iter(checkpoint.layers)) if args.layer is None else args.layer
    if name not in checkpoint.layers:
        held = ", ".join(list(checkpoint.layers)[:8])
        more = " ..." if len(checkpoint.layers) > 8 else ""
        guess = did_you_mean(name, checkpoint.layers)
        raise ValueError(f"--layer {name} is not in {args.source}; it holds {held}{more}{guess}")
    found = checkpoint.layers[name]
    tensors = {
        last: checkpoint.source.array(full)
        for last, full in found.tensors.items()
        if last not in found.form.ignored
    }
    return (
        Layer(found.form, tensors, codec_for(found.geometry.k * found.geometry.n)),
        f"{args.source}: {(name if name.isprintable() else repr(name)) or '(no name)'}",
    )


def _places(args, layer, tensor: str) -> list[tuple[int, int]]:
    if args.k is not None:
        first = layer.find(tensor, args.k, args.n)
        if args.words == 1:
            return list(first)
        row, column = first[0]
    else:
        row, column = _word(args.word or "0,0")
    shape = layer.tensors[tensor].shape if len(layer.tensors[tensor].shape) == 2 else (1, 1)
    return [(row, column + step) for step in range(min(args.words, max(1, shape[1] - column)))]


def _word(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--word {text} must be ROW,COLUMN: two numbers")
    return int(parts[0]), int(parts[1])
