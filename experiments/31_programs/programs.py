"""Which programs are tried, and what is changed in each: sizes and repetitions, where the program's
own would take hours here. A change is a pattern and what takes its place; nothing else of a program
is touched. What is not in CHANGES runs as it is.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

SAMPLES, LLMC = "CUDA samples", "llm.c"
FOLDERS = ("0_Introduction", "2_Concepts_and_Techniques", "3_CUDA_Features", "5_Domain_Specific")
FOLDERS += ("6_Performance",)
CODE = (".cu", ".cuh", ".cpp", ".h", ".hpp", ".inl")

# of every sample: how often it does the same again
ONCE = (
    (r"\b(nIter|testIterations|iterations|numIterations)( *= *)\d\d+;", r"\1\g<2>1;"),
    (r"\b(nreps|iters_timing)( *= *)\d\d+;", r"\1\g<2>4;"),
    (r"\b(NUM_ITERATIONS|numRuns|numLoops|NUM_RUNS|iCycles)( *= *)\d+;", r"\1\g<2>1;"),
    (r"#define (NUM_REPS|TEST_ITERATIONS|NUM_RUNS)( +)\(?\d+\)?", r"#define \1\g<2>1"),
)
# the smallest products that their tiles allow, and their own check by the processor
TILES = (
    ("define CPU_DEBUG 0", "define CPU_DEBUG 1"),
    (r"define ([MNK])_TILES \d+", r"define \1_TILES 8"),
)
CHANGES: dict[str, tuple[tuple[str, str], ...]] = {
    # what their kernels want: rows that are whole blocks, 256 channels at once, tiles of 128
    "attention_backward": (
        (r"block_sizes\[\] = \{32[^}]*\}", "block_sizes[] = { 32, 64}"),
        ("const int block_size = 256", "const int block_size = 64"),
    ),
    "layernorm_backward": (
        ("int C = 1600;", "int C = 2 * 256;"),
        ("int T = 1024;", "int T = 2 * 16;"),
    ),
    "softmax_forward": (("int V = 50257;", "int V = 2 * 265;"),),  # no less than a block's threads
    "trimat_forward": (("int T = 1024;", "int T = 2 * 64;"),),
    "BlackScholes": (("OPT_N( *)= 4000000", r"OPT_N\1= 40000"),),
    "histogram": (("64 \\* 1048576", "1048576"),),
    "mergeSort": (("4 \\* 1048576", "65536"),),
    "sortingNetworks": (("= 1048576;", "= 16384;"),),
    "scan": (("13 \\* 1048576 / 2", "262144"), ("64 \\* 1048576", "262144")),
    "radixSortThrust": (("1048576", "65536"), (r"\? 10 : 100", "? 1 : 1")),
    "reduction": (("1 << 24", "1 << 16"),),
    "threadFenceReduction": (("1 << 20", "1 << 16"),),
    "reductionMultiBlockCG": (("1 << 25", "1 << 17"),),
    "convolutionSeparable": (("= 3072;", "= 384;"),),
    "transpose": (("MATRIX_SIZE_([XY]) = 1024", r"MATRIX_SIZE_\1 = 512"),),
    "globalToShmemAsyncCopy": (("10 \\* 4 \\* matrixBlock", "4 * matrixBlock"),),
    "warpAggregatedAtomicsCG": (("NUM_ELEMS( +)10000000", r"NUM_ELEMS\g<1>51200"),),
    "alignedTypes": (("50000000", "500000"),),
    "simpleStreams": (("16 \\* 1024 \\* 1024", "64 * 1024"),),
    "simpleMultiCopy": (("1 << 22", "1 << 16"),),
    "eigenvalues": (("mat_size( *)= 2048", r"mat_size\1= 256"),),
    "asyncAPI": (("16 \\* 1024 \\* 1024", "64 * 1024"),),
    "scalarProd": (("ELEMENT_N = 4096", "ELEMENT_N = 1024"),),
    "fastWalshTransform": (("log2Data( *)= 23", r"log2Data\1= 14"),),
    "binomialOptions": (("#define MAX_OPTIONS 1024", "#define MAX_OPTIONS 8"),),
    "quasirandomGenerator": (("N = 1048576", "N = 16384"),),
    "FDTD3d": (("k_dim_min 96", "k_dim_min 32"), ("k_dim_qa( +)248", r"k_dim_qa\g<1>64")),
    "SobolQRNG": (("n_vectors( *)= 100000", r"n_vectors\1= 10000"),),
    **{f"{kind}TensorCoreGemm": TILES for kind in ("cuda", "imma", "bf16", "tf32")},
    "dmmaTensorCoreGemm": (
        ("define CPU_DEBUG 0", "define CPU_DEBUG 1"),
        ("_TILES 1024", "_TILES 16"),
    ),
    "MonteCarloMultiGPU": (("8 \\* 1024", "8"), ("262144", "16384")),
    "matrixMul": (("5 \\* 2 \\* block_size", "2 * block_size"), ("5 \\* 4", "4")),
}
OPENMP = ("-Xcompiler", "-fopenmp")
OPTIONS: dict[str, tuple[str, ...]] = {"cudaOpenMP": OPENMP, "UnifiedMemoryStreams": OPENMP}

# llm.c's dev/cuda: a file has a main that takes the number of a kernel.
LLMC_CHANGES = (
    (r"int repeat_times = \d+;", "int repeat_times = 1;"),
    (r"block_sizes\[\] = \{32[^}]*\}", "block_sizes[] = {64, 512}"),
    (r"sqrt_block_sizes\[\] = \{[^}]*\}", "sqrt_block_sizes[] = {8, 16}"),
    (r"num_parameters = 1048576", "num_parameters = 65536"),
    (r"\bint(64_t)? B = \d+;", r"int\1 B = 2;"),
    (r"\bint(64_t)? T = \d+;", r"int\1 T = 64;"),
    (r"\bint C = \d+;", "int C = 128;"),
    (r"\bint NH = \d+;", "int NH = 2;"),
    (r"\bint OC = 768 \* 4;", "int OC = 256;"),
    (r"\bint(64_t)? V = \d+;", r"int\1 V = 259;"),
)


@dataclass(frozen=True)
class Program:
    suite: str
    name: str
    folder: Path
    sources: tuple[Path, ...]
    includes: tuple[Path, ...]
    changes: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()
    runs: tuple[tuple[str, ...], ...] = ((),)

    def copy(self, to: Path) -> tuple[list[Path], list[Path]]:
        """Its code with the changes, in folder ``to``: sources, and where they include from."""
        for path in self.folder.rglob("*"):
            if path.suffix in CODE:
                place = to / path.relative_to(self.folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                code = path.read_text(encoding="utf-8", errors="replace")
                for pattern, new in self.changes:
                    code = re.sub(pattern, new, code)
                place.write_text(code, encoding="utf-8")
        sources = [to / path.relative_to(self.folder) for path in self.sources]
        return sources, [to, to / "inc", *self.includes]


def samples(root: Path) -> list[Program]:
    """Those of NVIDIA/cuda-samples that have kernels in CUDA C++."""
    found = []
    for folder in sorted(path for part in FOLDERS for path in (root / "Samples" / part).iterdir()):
        code = [path for path in folder.rglob("*") if path.suffix in (".cu", ".cpp")]
        if any(path.suffix == ".cu" for path in code):
            found.append(
                Program(
                    SAMPLES,
                    folder.name,
                    folder,
                    tuple(sorted(code)),
                    (root / "Common",),
                    (*ONCE, *CHANGES.get(folder.name, ())),
                    OPTIONS.get(folder.name, ()),
                )
            )
    return found


def llmc(root: Path) -> list[Program]:
    """Those of karpathy/llm.c/dev/cuda, with a run for each kernel of a file."""
    found = []
    folder = root / "dev" / "cuda"
    for path in sorted(folder.glob("*.cu")):
        _, _, chosen = path.read_text(encoding="utf-8").partition("switch (kernel_num)")
        numbers = re.findall(r"case (\d+):", chosen.partition("default:")[0])
        found.append(
            Program(
                LLMC,
                path.stem,
                folder,
                (path,),
                (),
                (*CHANGES.get(path.stem, ()), *LLMC_CHANGES),
                ("--use_fast_math", *OPENMP),
                tuple((number,) for number in numbers) or ((),),
            )
        )
    return found


def copy_data(program: Program, to: Path) -> None:
    """Images and numbers that a program reads beside its code."""
    for path in program.folder.rglob("*"):
        if path.is_file() and path.suffix not in CODE and path.stat().st_size < 1 << 24:
            place = to / path.relative_to(program.folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
