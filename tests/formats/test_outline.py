"""Contract under test: what kernels are chosen by is known of a stored layer without its codes, and
is that of the packed weight."""

from dataclasses import fields

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import testing
from numba_marlin.formats import changes
from numba_marlin.formats.files import STORED, find_stored
from numba_marlin.formats.stored import PLAIN, Outline
from numba_marlin.problems import WeightProblem
from tests.checkpoints.models import OTHERS, small_model
from tests.formats.layers import CASES, random_layer

pytest.importorskip("ml_dtypes")


class ZerosAlone(dict):
    """Tensors of which only zero points may be read."""

    def __getitem__(self, name):
        assert name in ("qzeros", "weight_zero_point"), name
        return super().__getitem__(name)


def packed(weight):
    """The weight as ``matmul`` takes it."""
    if getattr(weight, "bits", 4) in (2, 3):
        weight = changes.widen(weight, 4)
    return weight if hasattr(weight, "qweight") else nm.pack(weight)


def outline_of(weight):
    return Outline(
        *(getattr(weight, each.name, "integer") for each in fields(Outline))  # grid: FP4 has one
    )


@pytest.mark.parametrize(("form", "geometry"), CASES)
def test_the_outline_is_that_of_the_packed_weight(form, geometry):
    tensors = random_layer(form, geometry, 3)
    if geometry.scale_dtype == "e8m0":
        tensors["weight_scale"][:] = 100  # a random span may be too wide to pack
    try:
        expected = packed(form.read(tensors))
    except ValueError:
        with pytest.raises(ValueError):  # what cannot be packed is no problem of a kernel
            WeightProblem.of(1, form.outline(ZerosAlone(tensors), geometry))
        return
    found = form.outline(ZerosAlone(tensors), geometry)
    assert found == outline_of(expected)
    assert WeightProblem.of(7, found) == WeightProblem.of(7, expected)


@pytest.mark.parametrize("name", ["gptq", "gptq_v2", "awq", "vllm-marlin", "pack-quantized"])
@pytest.mark.parametrize("zeros", [None, "integer"])
def test_only_the_zero_points_say_whether_a_layer_is_symmetric(name, zeros):
    form = find_stored(name)
    weight = testing.make_quantized("uniform", "ordinary", 128, 64, 32, 0, zeros_kind=zeros)
    tensors = form.write(weight)
    outline = form.outline(ZerosAlone(tensors), form.check(tensors), PLAIN)
    assert outline.zeros_kind == packed(form.read(tensors)).zeros_kind == zeros


def test_every_format_says_what_it_is_to_kernels_or_why_nothing():
    for form in STORED.values():
        geometry = form.test_geometries[0]
        tensors = random_layer(form, geometry, 0)
        if form.runs:
            assert form.outline(tensors, geometry).k == geometry.k
        else:
            with pytest.raises(ValueError, match="no kernel multiplies"):
                form.outline(tensors, geometry)


def test_a_checkpoint_reads_zero_points_and_nothing_else(tmp_path, monkeypatch):
    path = nm.save_checkpoint(tmp_path / "model", small_model(2, "integer"), "gptq", others=OTHERS)
    checkpoint = nm.load_checkpoint(path)
    read, array = [], type(checkpoint.source).array
    monkeypatch.setattr(
        type(checkpoint.source),
        "array",
        lambda self, name: (read.append(name), array(self, name))[1],
    )
    for name in checkpoint:
        found = checkpoint.outline(name)
        assert (found.k, found.n, found.zeros_kind) == (128, 64, "integer")
    assert read == [f"{name}.qzeros" for name in checkpoint]
    assert checkpoint.bias("model.layers.0.mlp.up_proj") == "model.layers.0.mlp.up_proj.bias"
    assert checkpoint.bias("model.layers.1.mlp.up_proj") is None
    for method in (checkpoint.outline, checkpoint.bias):
        with pytest.raises(KeyError, match="did you mean 'model.layers.0.mlp.up_proj'"):
            method("model.layers.0.mlp.up_pro")


def test_a_bias_has_a_number_for_each_column(tmp_path):
    others = {"model.layers.0.mlp.up_proj.bias": np.zeros((64, 1), np.float32)}
    path = nm.save_checkpoint(tmp_path / "model", small_model(1), "gptq", others=others)
    assert nm.load_checkpoint(path).bias("model.layers.0.mlp.up_proj") is None
