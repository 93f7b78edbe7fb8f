"""``numba-marlin info``: the capabilities of this computer, probed now. Whatever is missing has a
row that says so."""

from __future__ import annotations

import platform

HELP = "show what this computer can and cannot do: compilers, assemblers, driver, GPUs, cache"
EXAMPLES = """  numba-marlin info
  numba-marlin info --json --out machine.json"""
PACKAGES = (
    "numpy",
    "numba",
    "llvmlite",
    "numba-cuda",
    "numba-cuda-mlir",
    "cuda-bindings",
    "cuda-core",
    "safetensors",
    "rich",
    "torch",
    "cupy",
)


def add_arguments(parser) -> None:
    del parser  # no options of its own


def execute(args, report) -> bool:
    from numba_marlin.cli.report import BOLD, DIM

    rows = collect()
    report.data = {"rows": rows}
    labels = [
        each["name"] if each["status"] == "ok" else f"{each['name']} [{each['status']}]"
        for each in rows
    ]
    for label, each in zip(labels, rows):
        report.row(
            label,
            each["detail"],
            BOLD if each["status"] == "ok" else DIM,
            max(map(len, labels)) + 1,
        )
    return True


def row(name: str, present: bool, detail: str) -> dict:
    return {"name": name, "status": "ok" if present else "missing", "detail": detail}


def collect() -> list[dict]:
    """Rows of name, status ("ok" or "missing") and detail."""
    compilers, gpu = _compilers(), _gpus()
    can_compile = any(each["status"] == "ok" for each in compilers)
    shipped = _shipped()
    on_gpu = can_compile and gpu[-1]["status"] == "ok"
    missing = "a GPU of compute capability 8.0 or more, and its driver"
    return [
        row(
            "can: PTX machine",
            True,
            "runs kernels and any other PTX on the CPU"
            if can_compile
            else (
                "runs any PTX on the CPU, of the kernels what is shipped: for others install"
                " numba-marlin[cu13] or numba-marlin[cu12]"
            ),
        ),
        row(
            "can: GPU",
            on_gpu,
            "runs kernels on device 0"
            if on_gpu
            else f"needs {missing if can_compile else 'a compiler'}",
        ),
        row("can: reference", True, "float64 product on the CPU"),
        row(
            "python",
            True,
            f"{platform.python_version()} ({platform.system()} {platform.machine()})",
        ),
        *_packages(),
        *compilers,
        shipped,
        _tool("ptxas", "no registers, no spills, no machine code: install numba-marlin[cu13]"),
        _tool("nvdisasm", "machine code cannot be inspected, only PTX: install numba-marlin[cu13]"),
        *gpu,
        _cache(),
        _witness(),
    ]


def _packages() -> list[dict]:
    from importlib import metadata

    rows = []
    for name in PACKAGES:
        try:
            rows.append(row(name, True, metadata.version(name)))
        except metadata.PackageNotFoundError:
            rows.append(row(name, False, "not installed"))
    return rows


def _compilers() -> list[dict]:
    from numba_marlin.compiler import COMPILERS, available_compilers
    from numba_marlin.compiler.errors import installed_with

    available = available_compilers()
    extra = {"numba-cuda": "cu13", "numba-cuda-mlir": "cu13,mlir"}
    return [
        row(
            f"compiler {name}",
            name in available,
            (
                f"found{', the default' if name == COMPILERS[0] else ''}"
                if name in available
                else f"not installed: {installed_with(f'pip install numba-marlin[{extra[name]}]')}"
            ),
        )
        for name in COMPILERS
    ]


def _shipped() -> dict:
    """A row for the PTX that runs without a compiler."""
    from numba_marlin.compiler import shipped
    from numba_marlin.data import shipped_index

    index = shipped_index()
    names = {each["kernel"] for each in index["kernels"]}
    made = f"made with {shipped.made_with(index['versions'])}"
    return row(
        "shipped PTX",
        shipped.current(),
        f"{len(names)} kernels in {len(index['kernels'])} configurations, {made}; not used where a"
        " compiler is installed"
        if shipped.current()
        else "not used: the installed sources are others than those that it was made from",
    )


def _tool(name: str, without: str) -> dict:
    from numba_marlin.compiler.assemble import tool_version
    from numba_marlin.compiler.tools import find_tools

    paths = find_tools(name)
    return row(name, bool(paths), f"{tool_version(paths[0])}, {paths[0]}" if paths else without)


def _gpus() -> list[dict]:
    """A row for the driver, then one per device, or one with the reason why there is none."""
    from numba_marlin.execution import driver

    probe = driver.probe()
    rows = [
        row(
            "driver",
            probe.driver_version is not None,
            f"CUDA {probe.driver_version}" if probe.driver_version else probe.reason,
        )
    ]
    for ordinal, each in enumerate(probe.devices):
        detail = (
            f"{each.name}, {each.sms} SMs, {each.arch}, {each.shared_bytes_per_block // 1024} KiB"
            " shared memory per block"
        )
        said = detail if probe.usable else f"{detail}: {probe.reason}"
        rows.append(row(f"gpu {ordinal}", probe.usable, said))
    if not probe.devices:
        reason = probe.reason if probe.driver_version else "none without a driver"
        rows.append(row("gpu", False, reason))
    return rows


def _witness() -> dict:
    """A row for the results that experiment 05 recorded on a GPU for the instructions of ptx/."""
    from numba_marlin.data import measured

    rows = measured("witness")
    outcomes = [each["outcome"] for each in rows]
    counts = ", ".join(
        f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)
    )
    instructions = len({covered for each in rows for covered in each["covers"]})
    return row(
        "hardware as witness",
        True,
        f"{rows[0]['device']}, CUDA {rows[0]['driver']}, {rows[0]['measured']}: {instructions}"
        f" instructions in {len(rows)} probes, {counts}",
    )


def _cache() -> dict:
    from numba_marlin.compiler.cache_directory import cache_directory

    directory = cache_directory()
    if directory is None:
        return row(
            "kernel cache",
            False,
            "no writable directory of one's own: kernels are compiled in every process",
        )
    sizes = [path.stat().st_size for path in directory.glob("*.kernel")]
    return row(
        "kernel cache", True, f"{directory}, {len(sizes)} kernel(s), {sum(sizes) / 1e6:.1f} MB"
    )
