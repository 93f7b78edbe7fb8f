"""The layers of the table: real weights, whole and as a GPU has them in tensor parallelism, those
first whose tiles fill an H200's SMs worst. Sizes follow from each model's published config.json."""

from numba_marlin.bench import shapes

# model (and parts) -> its layers in the table
LAYERS = (
    ("qwen-2.5-32b", "o"),
    ("qwen-2.5-7b", "o"),
    ("qwen-2.5-7b", "down"),
    ("gemma-2-9b", "o"),
    ("deepseek-v3", "shared down"),
    ("deepseek-v3", "q_a"),
    ("llama-3.2-1b", "down"),
    ("llama-3-70b/tp8", "o"),
    ("llama-3-70b/tp8", "qkv"),
    ("llama-3-70b/tp8", "down"),
    ("mistral-nemo-12b", "o"),
    ("phi-4-14b", "down"),
    ("qwen-3-14b/tp2", "down"),
    ("qwen-3-32b/tp4", "down"),
    ("gemma-2-9b", "down"),
    ("phi-4-14b", "qkv"),
    ("qwen-3-14b", "qkv"),
    ("gemma-2-27b/tp4", "gate_up"),
    ("mistral-small-24b/tp4", "gate_up"),
    ("deepseek-v3", "kv_a"),
    ("deepseek-v3", "q_b"),
    ("llama-3-70b/tp4", "o"),
    ("llama-3-70b/tp8", "gate_up"),
    ("qwen-2.5-72b/tp8", "gate_up"),
    ("llama-3-8b", "o"),
    ("llama-3-8b", "qkv"),
    ("llama-3-8b", "down"),
    ("llama-3-8b/tp2", "gate_up"),
    ("qwen-3-8b", "down"),
    ("llama-3-70b", "qkv"),
    ("llama-3-70b/tp2", "down"),
    ("llama-3-8b", "gate_up"),
)
SOURCES = {  # model -> the repository of its config.json on the Hugging Face Hub
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gemma-2-27b": "google/gemma-2-27b",
    "gemma-2-9b": "google/gemma-2-9b",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "mistral-nemo-12b": "mistralai/Mistral-Nemo-Base-2407",
    "mistral-small-24b": "mistralai/Mistral-Small-24B-Base-2501",
    "phi-4-14b": "microsoft/phi-4",
    "qwen-2.5-32b": "Qwen/Qwen2.5-32B",
    "qwen-2.5-72b": "Qwen/Qwen2.5-72B",
    "qwen-2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen-3-14b": "Qwen/Qwen3-14B",
    "qwen-3-32b": "Qwen/Qwen3-32B",
    "qwen-3-8b": "Qwen/Qwen3-8B",
}
# m, the most informative first: a run that is cut short has all shapes at the first of these
PASSES = (
    (128, 512, 1024),
    (1, 64, 256),
    (16, 32, 2048),
    (96, 384, 4096),
    (8, 48, 192),
    (2, 4, 24),
)
BATCHES = tuple(sorted(m for each in PASSES for m in each))


def layers():
    """A ``bench.shapes.Layer`` for each of LAYERS."""
    return tuple(
        next(each for each in shapes.resolve(model) if each.name == f"{model} {name}")
        for model, name in LAYERS
    )


def source(layer):
    """Where the layer's sizes come from."""
    return SOURCES[layer.name.partition(" ")[0].partition("/")[0]]


def cells(names=("*",)):
    """(layer, m) in the order of measuring. names: of the cells, as "5120x5120@64", with * and ?
    for anything; ValueError if one of them names none."""
    from fnmatch import fnmatchcase

    every = [(layer, m) for batches in PASSES for layer in layers() for m in batches]
    found = {name: 0 for name in names}
    wanted = []
    for layer, m in every:
        hits = [each for each in names if fnmatchcase(f"{layer.k}x{layer.n}@{m}", each)]
        found |= dict.fromkeys(hits, 1)
        wanted += [(layer, m)] if hits else []
    for name, hit in found.items():
        if not hit:
            raise ValueError(
                f"--cells {name!r} names none of the table: write KxN@M with * and ?, such as"
                " '5120x*@64'"
            )
    return wanted
