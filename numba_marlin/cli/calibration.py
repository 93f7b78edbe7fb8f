"""``--calib`` and ``--hessians`` of ``quantize`` and ``methods``: the Hessian of each layer.

``--calib`` is a .npy file [..., k] for a single layer, a .safetensors file with the inputs of each
layer under its name, or a .txt file, a text a line, which the model itself runs on
(``texts``). ``--hessians`` is a file of Hessians (``numba_marlin.calibration.store``): with
``--calib`` it is written, without it is read. Everything is read when it is looked up.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from numba_marlin.calibration import Hessians, load_hessians, save_hessians
from numba_marlin.calibration.store import METADATA, Shared
from numba_marlin.checkpoints.safetensors_file import SafetensorsFile
from numba_marlin.cli.report import check_output
from numba_marlin.cli.weights import load_array
from numba_marlin.quantizers.hessian import Hessian


def hessians(args, report, source) -> Mapping[str, Hessian] | None:
    """layer -> Hessian, for every layer of ``source`` (a ``Floats``); None without ``--calib`` and
    ``--hessians``. Raises ValueError, before the first is read, for a layer that has none, and for
    one of other inputs than the layer has."""
    if args.calib is None:
        if args.hessians is None:
            return None
        found = load_hessians(args.hessians)
        _check(f"--hessians {args.hessians}", found, source.shapes)
        _say_what_is_few(report, found, source.shapes)
        return found
    kept = check_output(args.hessians, (".safetensors",), "--hessians")
    if kept is not None and os.path.lexists(kept):
        raise ValueError(
            f"--hessians {kept} exists: leave out --calib to use what is in it, or choose another"
            " name"
        )
    target = getattr(args, "target", None)  # of quantize; methods has none
    if kept is not None and target is not None and kept.resolve() == Path(target).resolve():
        raise ValueError(f"--hessians {kept} is DST: choose another name")
    path = Path(args.calib)
    if not path.is_file():
        raise ValueError(
            f"--calib {path}: {'is not a regular file' if path.exists() else 'no such file'}"
        )
    if path.suffix == ".txt":
        from numba_marlin.cli.texts import from_texts

        found = from_texts(path, report, source, kept)
    elif path.suffix in (".npy", ".safetensors"):
        found = _from_inputs(path, source.shapes)
    else:
        raise ValueError(
            f"--calib {path} must be a .npy or .safetensors file of inputs, or a .txt file of texts"
        )
    _say_what_is_few(report, found, source.shapes)
    if kept is None:
        return found
    with report.step(f"writing {len(found)} Hessians to {kept}"):
        save_hessians(kept, found)
    report.data["hessians"] = str(kept)
    return load_hessians(kept)


def _check(what: str, found: Hessians, shapes: dict[str, tuple[int, int]]) -> None:
    missing = [name for name in shapes if name not in found]
    if missing:
        raise ValueError(
            f"{what} contains no Hessian for {len(missing)} of {len(shapes)} layers:"
            f" {', '.join(missing[:20])}; it contains {', '.join(list(found)[:20])}"
        )
    for name, (k, _) in shapes.items():
        if found.k_of(name) != k:
            raise ValueError(
                f"{what}: layer {name!r}: a Hessian of k={found.k_of(name)}, must be k={k}, the"
                " weight's rows"
            )


def _say_what_is_few(report, found: Hessians, shapes) -> None:
    """Fewer rows than inputs leave directions in which nothing weighs an error."""
    few = [name for name in shapes if found.rows_of(name) < found.k_of(name)]
    report.data["fewer_rows_than_k"] = few
    if few:
        name = few[0]
        report.row(
            "note",
            f"{len(few)} of {len(shapes)} layers have fewer rows of inputs than k"
            f" ({name}: {found.rows_of(name):,} of {found.k_of(name):,}): gptq fits these rows, and"
            " its error on others is larger; calibrate on more",
        )


def _from_inputs(path: Path, shapes: dict[str, tuple[int, int]]) -> Hessians:
    """From a file of inputs, layer by layer."""
    names = list(shapes)
    if path.suffix == ".npy":
        if len(names) != 1:
            raise ValueError(
                f"--calib {path} contains one array, for one layer; {len(names)} layers need a"
                " .safetensors file with an array for each of them"
            )
        inputs = {names[0]: load_array(path, "--calib")}
        read = inputs.__getitem__
    else:
        file = SafetensorsFile(path)
        if METADATA in file.metadata:
            raise ValueError(
                f"--calib {path} holds Hessians, not inputs: say --hessians {path} in its place"
            )
        inputs, read = file.entries, file.array
        missing = [name for name in names if name not in inputs]
        if missing:
            raise ValueError(
                f"--calib {path} contains no inputs for {len(missing)} of {len(names)} layers:"
                f" {', '.join(missing[:20])}; it contains {', '.join(list(inputs)[:20])}"
            )

    for name, (k, _) in shapes.items():
        if tuple(inputs[name].shape)[-1:] != (k,):
            shape = tuple(inputs[name].shape)
            raise ValueError(f"{name}: calibration: x.shape={shape} must end in k={k}")

    def shared(name: str, k: int) -> Shared:
        def of_layer() -> Hessian:
            try:
                return Hessian(k).add(read(name))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error

        return Shared((name,), k, math.prod(inputs[name].shape[:-1]), of_layer)

    return Hessians(shared(name, k) for name, (k, _) in shapes.items())
