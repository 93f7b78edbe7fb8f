"""``load_experts``: the experts of a layer of a mixture, from a checkpoint that has them one at a
time, or fused in one tensor.

Fused tensors are those of transformers' mixtures (``modeling_gpt_oss``, ``modeling_mixtral`` and
``integrations/mxfp4`` of transformers 5):

    NAME_blocks  uint8 [E, n, k/32, 16]: MXFP4 (gpt-oss). Byte b of block g of a row n has the code
                 of k = 32 g + 2 b in its low nibble, that of k + 1 in its high one.
    NAME_scales  uint8 [E, n, k/32]: e8m0, a power of two each.
    NAME_bias    [E, n]
    NAME         floats [E, n, k], as torch.nn.Linear has them, or [E, k, n]

Of gpt-oss's ``gate_up_proj`` gate's and up's columns take turns, gate's first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from numba_marlin.api.packing import pack
from numba_marlin.api.quantizing import quantize
from numba_marlin.api.surgery import concat
from numba_marlin.formats import BlockWeight, PackedBlocks, PackedWeight
from numba_marlin.formats.experts import PackedExperts, side_by_side
from numba_marlin.formats.floats import round_to

BLOCK, BLOCK_BYTES = 32, 16  # elements and bytes of a block of MXFP4
BLOCKS, SCALES, BIAS = "_blocks", "_scales", "_bias"
FLOATS = ("float16", "bfloat16", "float32", "float64")


def load_experts(
    checkpoint: Mapping,
    *names: str,
    dtype: str | None = None,
    interleaved: bool | None = None,
    transposed: bool = False,
    return_bias: bool = False,
    **quantization,
) -> Any:
    """The experts of a layer of a checkpoint, packed, on the host.

    checkpoint: of ``load_checkpoint``, or any mapping of names to weights, and of names of fused
        tensors to arrays.
    names: of the layer of expert number {}, "model.layers.0.mlp.experts.{}.down_proj"; of several
        ("...gate_proj", "...up_proj"; Mixtral: "...w1", "...w3") the columns side by side. Numbers
        count from 0 to the last that is there. Or, without a {}, one fused tensor of all experts:
        "model.layers.0.mlp.experts.down_proj", of which there may be NAME_blocks and NAME_scales
        (gpt-oss) or NAME, floats.
    dtype: of what FP4 is packed for, as in ``pack``, and of the bias; default float16.
    interleaved: whether a fused tensor's columns are gate's and up's in turns; they are put side by
        side. Default: of a NAME_blocks that ends in gate_up_proj (gpt-oss).
    transposed: fused floats are [E, k, n] (gpt-oss), not [E, n, k] as of other mixtures.
    return_bias: return (experts, bias): NAME_bias [E, n] of a fused tensor, in the columns' order
        here; NumPy, of ``dtype``.
    quantization: where the checkpoint has floats: ``bits``, ``group_size``, ``method`` ... of
        ``quantize``; experts are quantised one by one.

    KeyError or ValueError, naming the layer and the rule, for names without a layer and tensors
    that do not go together. Experts are read and packed one at a time.
    """
    if not names:
        raise ValueError("names must not be empty: pass 'model.layers.0.mlp.experts.{}.down_proj'")
    for each in names:
        if not isinstance(each, str) or each.count("{}") > 1:
            raise ValueError(f"name {each!r} must have one {{}}, for the expert's number")
    fused = [each for each in names if "{}" not in each]
    if not fused:
        for option, given in (("interleaved", interleaved), ("return_bias", return_bias)):
            if given:
                raise ValueError(f"{option} must be left out: {names[0]!r} is no fused tensor")
        return PackedExperts.of(_one_by_one(checkpoint, names, dtype, quantization))
    if len(names) > 1:
        raise ValueError(
            f"name {fused[0]!r} must have one {{}}, for the expert's number, or stand alone: it"
            " is a fused tensor"
        )
    name = names[0]
    if _has(checkpoint, name + BLOCKS):
        if quantization or transposed:
            raise ValueError(
                f"layer {name!r}: quantization and transposed must be left out: it is MXFP4"
            )
        turns = name.endswith("gate_up_proj") if interleaved is None else interleaved
        weights = _of_blocks(checkpoint, name, turns)
    elif _has(checkpoint, name):
        turns = bool(interleaved)
        weights = _of_floats(checkpoint, name, turns, transposed, quantization)
    else:
        raise KeyError(f"no tensor {name + BLOCKS!r} or {name!r} in the checkpoint")
    experts = PackedExperts.of(_packed(each, dtype) for each in weights)
    if not return_bias:
        return experts
    return experts, _bias(checkpoint, name, experts, turns, dtype or "float16")


def _one_by_one(checkpoint: Mapping, names: tuple[str, ...], dtype, quantization: dict) -> list:
    found: list[Any] = []
    while _is_layer(checkpoint, names[0].format(len(found))):
        number = len(found)
        parts = [
            _packed(_layer(checkpoint, name.format(number), quantization), dtype) for name in names
        ]
        found.append(concat(parts) if len(parts) > 1 else parts[0])
    if not found:
        raise KeyError(f"no layer {names[0].format(0)!r} in the checkpoint")
    return found


def _is_layer(checkpoint: Mapping, name: str) -> bool:
    return name in checkpoint or _has(checkpoint, name + ".weight")


def _layer(checkpoint: Mapping, name: str, quantization: dict) -> Any:
    """A weight of the checkpoint, quantised if it is floats."""
    if name in checkpoint:
        if quantization:
            raise ValueError(f"layer {name!r} is quantised: leave out {', '.join(quantization)}")
        return checkpoint[name]
    if not _has(checkpoint, name + ".weight"):
        raise KeyError(f"no layer {name!r} in the checkpoint, which the first of the names has")
    return _quantised(repr(name), np.asarray(_tensor(checkpoint, name + ".weight")).T, quantization)


def _quantised(name: str, values: np.ndarray, quantization: dict):
    """values: [k, n]; name: for messages."""
    try:
        return quantize(np.ascontiguousarray(values), **quantization)
    except ValueError as error:
        raise ValueError(f"layer {name}: {error}") from error


def _packed(weight: Any, dtype: str | None):
    if isinstance(weight, (PackedWeight, PackedBlocks)):
        return weight
    return pack(weight, dtype=dtype if isinstance(weight, BlockWeight) else None)


# ---- tensors of a checkpoint that are no layer of their own


def _has(checkpoint: Any, name: str) -> bool:
    return name in checkpoint or name in getattr(checkpoint, "others", ())


def _tensor(checkpoint: Any, name: str) -> np.ndarray:
    if name in getattr(checkpoint, "others", ()):
        return checkpoint.tensor(name)
    if name not in checkpoint:
        raise KeyError(f"no tensor {name!r} in the checkpoint")
    return np.asarray(checkpoint[name])


def _check(
    name: str, array: np.ndarray, types: tuple[str, ...], sizes: tuple, meaning: str
) -> None:
    """ValueError unless an array has one of the types, and the sizes that are not None."""
    if array.dtype.name not in types:
        raise ValueError(f"tensor {name!r} is {array.dtype}, must be {' or '.join(types)}")
    fits = array.ndim == len(sizes) and all(
        size > 0 and wanted in (None, size) for size, wanted in zip(array.shape, sizes)
    )
    if not fits:
        raise ValueError(f"tensor {name!r} has shape {array.shape}, must be {meaning}")


def _order(name: str, columns: int, turns: bool) -> np.ndarray:
    """Which of a tensor's columns are ours, one after the other."""
    if not turns:
        return np.arange(columns)
    if columns % 2:
        raise ValueError(f"layer {name!r} has n={columns} columns, must be even: gate's and up's")
    return side_by_side(columns)


def _of_blocks(checkpoint: Mapping, name: str, turns: bool) -> Iterator[BlockWeight]:
    blocks, scales = (_tensor(checkpoint, name + each) for each in (BLOCKS, SCALES))
    _check(name + BLOCKS, blocks, ("uint8",), (None, None, None, BLOCK_BYTES), "(E, n, k/32, 16)")
    _check(name + SCALES, scales, ("uint8",), blocks.shape[:3], f"(E, n, k/32)={blocks.shape[:3]}")
    order = _order(name, blocks.shape[1], turns)
    for number in range(len(blocks)):
        rows = blocks[number][order]
        codes = np.stack([rows & 15, rows >> 4], axis=-1).reshape(len(order), -1)
        try:
            yield BlockWeight(
                np.ascontiguousarray(codes.T),
                "e2m1",
                np.ascontiguousarray(scales[number][order].T),
                "e8m0",
                (BLOCK, 1),
            )
        except ValueError as error:
            raise ValueError(f"layer {name!r}, expert {number}: {error}") from error


def _of_floats(
    checkpoint: Mapping, name: str, turns: bool, transposed: bool, quantization: dict
) -> Iterator[Any]:
    values = _tensor(checkpoint, name)
    _check(name, values, FLOATS, (None,) * 3, "(E, k, n)" if transposed else "(E, n, k)")
    order = _order(name, values.shape[2 if transposed else 1], turns)
    for number in range(len(values)):
        of_expert = values[number] if transposed else values[number].T
        yield _quantised(f"{name!r}, expert {number}", of_expert[:, order], quantization)


def _bias(
    checkpoint: Mapping, name: str, experts: PackedExperts, turns: bool, dtype: str
) -> np.ndarray:
    bias, shape = _tensor(checkpoint, name + BIAS), (len(experts), experts.n)
    _check(name + BIAS, bias, FLOATS, shape, f"(E, n)={shape}")
    ordered = bias[:, _order(name, experts.n, turns)]
    return round_to(ordered.astype(np.float32), dtype)
