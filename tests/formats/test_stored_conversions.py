"""Contract under test: a weight goes from any stored format to any that can hold it, exactly, or is
refused with what would be lost."""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import hostloops, testing
from numba_marlin.formats import PackedWeight, changes
from numba_marlin.formats.files import find_stored
from numba_marlin.quantizers import dequantize
from tests.formats.layers import INTEGER


def convertible(weight, form):
    try:
        form.losses(weight)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("kind", ["symmetric", "zeros", "bytes"])
def test_conversions_between_every_pair_keep_a_million_codes(kind):
    """From each format to each other and back: what is possible without loss is the same weight,
    bit for bit."""
    codec = hostloops.Compiled()
    bits, zeros = (8 if kind == "bytes" else 4), (None if kind == "symmetric" else "integer")
    weight = testing.make_quantized(
        "uniform", "ordinary", 1024, 1024, 128, 3, bits=bits, zeros_kind=zeros
    )
    made = {
        form.name: form.read(form.write(weight, codec), codec)
        for form in INTEGER
        if convertible(weight, form)
    }
    assert (
        set(made)
        == {
            "symmetric": {"gptq", "gptq_v2", "awq", "marlin", "vllm-marlin", "pack-quantized"},
            "zeros": {"gptq", "gptq_v2", "awq", "vllm-marlin", "pack-quantized"},
            "bytes": {"gptq", "gptq_v2", "vllm-marlin", "pack-quantized"},
        }[kind]
    )
    for source in made.values():
        for name in made:
            form = find_stored(name)
            assert form.losses(source, codec) == ()
            back = form.read(form.write(source, codec), codec)
            back = hostloops.unpack_marlin(back) if isinstance(back, PackedWeight) else back
            assert (
                np.array_equal(back.codes, weight.codes)
                and back.scales.tobytes() == weight.scales.tobytes()
            )
            assert np.array_equal(changes.explicit_zeros(back), changes.explicit_zeros(weight))


def test_losses_are_named_and_refused():
    """Activation order in AWQ, float16 zero points, bfloat16 scales: refused in words, done when
    asked for."""
    rng = np.random.default_rng(0)
    weight = testing.make_quantized("uniform", "ordinary", 64, 64, 32, 1)
    ordered = replace(weight, permutation=rng.permutation(64).astype(np.int32))
    with pytest.raises(changes.LossError, match="no activation order.*allow_loss=True") as caught:
        find_stored("awq").write(ordered)
    assert len(caught.value.losses) == 1
    back = find_stored("awq").read(find_stored("awq").write(ordered, allow_loss=True))
    assert np.array_equal(dequantize(back), dequantize(ordered)), (
        "the permutation is kept with the weights"
    )
    between = replace(weight, zeros=np.full((2, 64), 7.5, np.float16))
    for name in ("gptq", "awq", "pack-quantized", "vllm-marlin"):
        with pytest.raises(changes.LossError, match="128 float16 zero points are not on the grid"):
            find_stored(name).write(between)
    assert find_stored("gptq").losses(replace(weight, zeros=np.full((2, 64), 7, np.float16))) == ()
    wide = testing.make_quantized("uniform", "ordinary", 64, 64, 32, 1, scale_dtype="bfloat16")
    small = replace(
        wide, scales=(wide.scales.astype(np.float32) * 2**-18).astype(wide.scales.dtype)
    )
    assert find_stored("marlin").losses(wide) == (), (
        "8 significant bits in a range that float16 has"
    )
    with pytest.raises(changes.LossError, match="bfloat16 scales would be rounded to float16"):
        find_stored("marlin").write(small)
    with pytest.raises(ValueError, match="zero points do not fit in format 'marlin'"):
        find_stored("marlin").losses(
            testing.make_quantized("uniform", "ordinary", 64, 64, 32, 1, zeros_kind="integer")
        )
    with pytest.raises(ValueError, match="codes of 8 bits must have at most 4"):
        find_stored("awq").losses(
            testing.make_quantized("uniform", "ordinary", 64, 64, 32, 1, bits=8)
        )


def test_a_single_group_needs_no_order():
    weight = testing.make_quantized("uniform", "ordinary", 64, 64, -1, 1)
    ordered = replace(weight, permutation=np.random.default_rng(0).permutation(64).astype(np.int32))
    for form in INTEGER:
        assert form.losses(ordered) == ()
        assert np.array_equal(dequantize(form.read(form.write(ordered))), dequantize(ordered)), (
            form.name
        )
