"""For tests beside other people's libraries: layers whose codes are known, files of what a library
made, and packages without their start-up code."""

import importlib.util
import json
import sys
import types
from dataclasses import dataclass

import numpy as np
import pytest

import numba_marlin as nm

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file  # noqa: E402


def without_init(name):
    """Lets modules of an installed package be imported without its ``__init__``, which asks for
    more than packing needs (models, a GPU's compilers). Skips where there is no such package."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"could not import {name!r}", allow_module_level=True)
    package = types.ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package


@dataclass(frozen=True)
class Drawn:
    """codes [k, n]; scales float16 and zeros uint8 [groups, n]; group of every row [k]; linear:
    float weights that are exactly these."""

    bits: int
    codes: np.ndarray
    scales: torch.Tensor
    zeros: torch.Tensor
    g_idx: torch.Tensor
    linear: torch.nn.Linear


def draw(
    k,
    n,
    bits,
    group,
    symmetric,
    order=False,
    smallest_zero=1,
    largest_zero=None,
    dtype=torch.float32,
):
    """A layer whose float weights lie on its grid, so that whoever rounds them finds the codes
    again. group None: one scale a column."""
    rng = np.random.default_rng(bits * k + n)
    groups = k // (group or k)
    codes = rng.integers(0, 1 << bits, (k, n), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.1, (groups, n)).astype(np.float16)
    top = (1 << bits) - 1 if largest_zero is None else largest_zero
    zeros = (
        np.full((groups, n), 1 << bits - 1, np.uint8)
        if symmetric
        else rng.integers(smallest_zero, top + 1, (groups, n), dtype=np.uint8)
    )
    g_idx = np.arange(k) // (k // groups)
    if order:
        g_idx = rng.permutation(g_idx)
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = torch.from_numpy(
        ((codes.astype(np.float32) - zeros[g_idx]) * scales.astype(np.float32)[g_idx]).T.copy()
    ).to(dtype)
    return Drawn(
        bits,
        codes,
        torch.from_numpy(scales),
        torch.from_numpy(zeros),
        torch.from_numpy(g_idx.astype(np.int32)),
        linear,
    )


def as_checkpoint(path, tensors, **quantization):
    """A directory with one file of one layer, and ``quantization_config`` beside it -> our
    weight."""
    path.mkdir()
    save_file(
        {f"layer.{name}": tensor.contiguous() for name, tensor in tensors.items()},
        path / "model.safetensors",
    )
    (path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    return nm.load_checkpoint(path)["layer"]


def assert_written_alike(path, weight, form):
    """What we write of ``weight`` is what the library wrote into the directory ``path``, tensor by
    tensor."""
    nm.save_checkpoint(path.parent / "ours.safetensors", {"layer": weight}, form)
    theirs, ours = (
        load_file(path / "model.safetensors"),
        load_file(path.parent / "ours.safetensors"),
    )
    assert set(theirs) == set(ours)
    for name in theirs:
        assert torch.equal(theirs[name], ours[name]) and theirs[name].dtype == ours[name].dtype, (
            name
        )


def assert_same_numbers(weight, theirs, dtype=np.float16):
    """Every number of ours [k, n] is the library's, bit for bit but for the sign of zero."""
    assert np.array_equal(
        nm.dequantize(weight, dtype).astype(np.float64), theirs.detach().to(torch.float64).numpy()
    )
