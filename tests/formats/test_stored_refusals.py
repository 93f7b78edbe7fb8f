"""Contract under test: layers that are not what they say, and shapes, orders and values that cannot
be, are refused in words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin.formats.files import STORED, find_stored
from numba_marlin.formats.stored import FormatError
from tests.formats import layers
from tests.formats.layers import CASES


class Described:
    """A tensor's shape and type, as in the header of a file."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)


@pytest.mark.parametrize(("form", "geometry"), CASES)
def test_layers_that_are_not_what_they_say_are_refused(form, geometry):
    tensors = layers.random_layer(form, geometry, 0)
    with pytest.raises(FormatError, match="has unknown surprise"):
        form.check(tensors | {"surprise": np.zeros(3)})
    for name in tensors:
        if name in form.keys:
            with pytest.raises(FormatError, match=f"has no {name}"):
                form.check({key: each for key, each in tensors.items() if key != name})
        with pytest.raises(FormatError, match=f"{name}|must be one of"):
            form.check(
                tensors
                | {
                    name: (
                        tensors[name].astype(np.complex64)
                        if name != "weight_shape"
                        else np.ones(2, np.int8)
                    )
                }
            )
        shape = tensors[name].shape
        for changed in (
            {
                (*shape, 1),
                shape[:-1],
                (*shape[:-1], 0),
                (*shape[:-1], shape[-1] + 1),
                (shape[0] * 3, *shape[1:]),
            }
            if shape
            else {(2,), (1, 2)}
        ) - {shape, (1,)}:
            if changed in form.specs(geometry)[name].also:
                continue
            try:
                assert (
                    form.check(tensors | {name: Described(changed, tensors[name].dtype)})
                    != geometry
                ), "a layer of another size, and so it says"
            except FormatError as error:
                assert str(error)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_shapes_are_accepted_or_refused_in_words(data):
    """Also absurd ones: nothing but a FormatError comes of them, and nothing is allocated."""
    form = data.draw(st.sampled_from(list(STORED.values())))
    sizes = st.one_of(st.integers(0, 70), st.sampled_from([2**31, 2**62, 128, 4096]))
    names = data.draw(st.sets(st.sampled_from([*form.keys, *form.optional, "other"])))
    dtypes = ["int32", "float16", "uint8", "int64", "float32", "complex64"]
    tensors = {
        name: Described(
            tuple(data.draw(st.lists(sizes, max_size=3))), data.draw(st.sampled_from(dtypes))
        )
        for name in names | set(form.keys)
    }
    if "weight_shape" in tensors:
        tensors["weight_shape"].value = data.draw(st.lists(st.integers(-5, 2**63 - 1), max_size=3))
    try:
        form.check(tensors)
    except FormatError:
        pass


@pytest.mark.parametrize(
    "said",
    [
        [float("inf")] * 2,
        [float("nan")] * 2,
        [16, 32.5],
        [[16], [32]],
        [],
        [2**63, 32],
        [16, 0],
        [-16, -32],
    ],
)
def test_a_shape_that_is_said_and_cannot_be(said):
    form = find_stored("pack-quantized")
    tensors = layers.random_layer(form, form.test_geometries[0], 0)
    tensors["weight_shape"] = Described((2,), "int64")
    tensors["weight_shape"].value = said
    if said == [[16], [32]]:
        assert form.check(tensors) == form.test_geometries[0]
    else:
        with pytest.raises(FormatError, match="weight_shape|do not go together|weight_packed"):
            form.check(tensors)


@pytest.mark.parametrize(
    ("g_idx", "message"),
    [
        (lambda g: g * 0 + 7, "g_idx must be in 0..1"),
        (lambda g: np.minimum(g, 0), None),
        (lambda g: g - 1, "g_idx must be in"),
        (
            lambda g: np.where(np.arange(64) < 10, 0, 1).astype(np.int32),
            "gives 10 rows to group 0, must give 32",
        ),
    ],
)
def test_an_activation_order_that_cannot_be_is_refused(g_idx, message):
    form = find_stored("gptq")
    tensors = layers.random_layer(form, form.test_geometries[0], 0)
    tensors["g_idx"] = g_idx(tensors["g_idx"]).astype(np.int32)
    if message is None:
        assert form.read(tensors).permutation is None, "all zeros: no activation order"
    else:
        with pytest.raises(ValueError, match=message):
            form.read(tensors)


def test_values_that_cannot_be_are_refused():
    form = find_stored("vllm-marlin")
    tensors = layers.random_layer(form, form.test_geometries[-1], 0)
    twice = tensors["g_idx_sort_indices"].copy()
    twice[0] = twice[1]
    with pytest.raises(ValueError, match="every row number"):
        form.read(tensors | {"g_idx_sort_indices": twice})
    with pytest.raises(FormatError, match="ascending order"):
        form.read(tensors | {"g_idx": tensors["g_idx"][::-1].copy()})
    with pytest.raises(ValueError, match=r"scales\[0, 0\]=nan must be finite"):
        form.read(tensors | {"scales": np.full_like(tensors["scales"], np.nan)})
