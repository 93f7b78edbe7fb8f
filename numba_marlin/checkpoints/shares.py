"""The tensors of a stored layer that one of several ranks holds while an engine loads it, and the
weights that they are.

An engine makes a layer's tensors empty, cuts those of the files as it meets them (columns by rank;
q, k and v, or gate and up, side by side; rows by rank in a row-parallel layer), and hands over the
filled ones. ``Share.held`` says how large each is and along which axes it is cut, ``Share.read``
what they hold.

A row-parallel layer in activation order, or one whose parts would begin within a group of rows that
share a scale, is loaded with all of its rows by every rank (``Share.whole``), packed, and then cut
by ``numba_marlin.shard``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from numba_marlin.checkpoints.checkpoint import codec_for
from numba_marlin.checkpoints.scheme import Scheme
from numba_marlin.formats import changes
from numba_marlin.formats.files import find_stored
from numba_marlin.formats.marlin import BLOCK_K, COLUMN_STEP, check_problem
from numba_marlin.formats.stored import Geometry, StoredWeight
from numba_marlin.formats.types import check_group_size

UNKNOWN = -1  # what ``Share.read`` takes for a g_idx that the files do not have


@dataclass(frozen=True)
class Held:
    """One tensor of a layer as a rank holds it. rows, columns: the axis along which k or n lies;
    rows is None where every rank holds all of it. packed: the axis whose neighbours share a word of
    ``per_word`` codes, None for scales."""

    shape: tuple[int, ...]
    dtype: str
    columns: int
    rows: int | None
    packed: int | None = None
    per_word: int = 1


@dataclass(frozen=True)
class Share:
    """What a rank holds of a layer [k, n].

    name: of the layer, for messages. k: rows of the whole. parts: columns on this rank of each of
    the layers that are fused in this one. rank, world: this rank and their number, of a
    row-parallel layer; the others have all rows.

    ValueError, which names the layer, the value and the rule, for what cannot be multiplied.
    """

    name: str
    scheme: Scheme
    k: int
    parts: tuple[int, ...]
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.scheme.k not in (None, self.k):
            raise ValueError(
                f"layer {self.name!r}: k={self.k} in the model must be {self.scheme.k}, that of"
                " the files"
            )
        for n in self.parts:
            if n <= 0 or n % COLUMN_STEP:
                raise ValueError(
                    f"layer {self.name!r}: n={n} of a rank must be a positive multiple of"
                    f" {COLUMN_STEP}: fewer ranks have more columns each"
                )
        if self.k % (self.world * BLOCK_K):
            raise ValueError(
                f"layer {self.name!r}: k={self.k} over {self.world} ranks must be a multiple of"
                f" {BLOCK_K} on each"
            )
        try:
            check_problem(self.k, self.n, check_group_size(self.scheme.group, self.k))
        except ValueError as error:
            raise ValueError(f"layer {self.name!r}: {error}") from error

    @property
    def n(self) -> int:
        """Columns of this rank."""
        return sum(self.parts)

    @property
    def groups(self) -> int:
        """Groups of the whole layer."""
        group = check_group_size(self.scheme.group, self.k)
        return 1 if group == -1 else self.k // group

    @property
    def whole(self) -> bool:
        """Whether this rank loads the rows of all ranks."""
        rows = self.k // self.groups  # that share a scale
        ordered = self.scheme.ordered and self.groups > 1
        return self.world > 1 and (ordered or (self.groups > 1 and self.k // self.world % rows > 0))

    @property
    def rows(self) -> int:
        """Rows that this rank loads."""
        return self.k if self.whole else self.k // self.world

    def _geometry(self, n: int) -> Geometry:
        scheme = self.scheme
        group = -1 if self.groups == 1 else self.k // self.groups
        zeros = {"weight_zero_point"} if scheme.zeros else set()
        return Geometry(self.rows, n, scheme.bits, group, extras=frozenset(zeros))

    def held(self, activations: str) -> dict[str, Held]:
        """Name of a tensor -> what this rank holds, without g_idx and weight_shape. activations:
        the type of the scales where the files are not at hand."""
        specs = find_stored(self.scheme.form).specs(self._geometry(self.n))
        packings = {name: spec.packing for name, spec in specs.items() if spec.packing is not None}
        # columns first in compressed-tensors, rows in the others
        down, across = (0, 1) if next(iter(packings.values())).first == "k" else (1, 0)
        found = {}
        for name, spec in specs.items():
            if len(spec.shape) != 2:
                continue
            packing = packings.get(name)
            shared = self.world == 1 or self.whole
            one_group = spec.shape[down] == 1 and self.groups == 1
            rows = None if shared or one_group else down
            if packing is None:
                dtype = self.scheme.scale_dtype or activations
                found[name] = Held(spec.shape, dtype, across, rows)
            else:
                axis = down if packing.along == "k" else across
                per_word = packing.word_bits // self.scheme.bits
                found[name] = Held(spec.shape, packing.word, across, rows, axis, per_word)
        return found

    def read(
        self, tensors: Mapping[str, np.ndarray], index: np.ndarray | None = None
    ) -> list[StoredWeight]:
        """The weights that the loaded tensors are, side by side: one, or where the fused layers
        differ in their activation orders one of each.

        tensors: as ``held`` says. index: int32 [parts, k], the g_idx of each fused layer, all
        UNKNOWN where the files have none; None if there is none. ValueError, naming the layer, for
        impossible values and for an activation order that nobody announced.
        """
        try:
            orders = self._orders(index)
            if orders is None or (orders == orders[0]).all():
                return [self._read_one(tensors, self.n, None if orders is None else orders[0])]
            weights, first = [], 0
            for n, order in zip(self.parts, orders):
                taken = {
                    name: _columns(tensors[name], held, first, n)
                    for name, held in self.held("float16").items()
                }
                weights.append(self._read_one(taken, n, order))
                first += n
            return weights
        except ValueError as error:
            raise ValueError(f"layer {self.name!r}: {error}") from error

    def _orders(self, index: np.ndarray | None) -> np.ndarray | None:
        """The rows of ``index`` that are to be read, None if no layer has an order."""
        if index is None or self.groups == 1:
            return None
        if self.scheme.ordered and (index == UNKNOWN).all():
            raise ValueError(
                f"{self.scheme.index} was not loaded, which says in what order its rows are"
            )
        usual = (np.arange(self.k) // (self.k // self.groups)).astype(np.int32)
        orders = np.stack([usual if (each == UNKNOWN).all() else each for each in index])
        if all(changes.order_of_groups(each, self.groups) is None for each in orders):
            return None
        if self.world > 1 and not self.whole:
            raise ValueError(
                f"{self.scheme.index} is in activation order, which the configuration denies"
                " (desc_act, actorder): rows of this rank were taken by their place"
            )
        return orders

    def _read_one(self, tensors: Mapping[str, np.ndarray], n: int, order) -> StoredWeight:
        form = find_stored(self.scheme.form)
        given = dict(tensors)
        if "weight_shape" in form.keys:
            given["weight_shape"] = np.array([n, self.rows], np.int64)
        if order is not None and self.scheme.index is not None:
            given[self.scheme.index] = np.ascontiguousarray(order)
        return form.read_stored(given, codec_for(self.rows * n))


def _columns(tensor: np.ndarray, held: Held, first: int, n: int) -> np.ndarray:
    """Columns of a tensor, which are words where they share them."""
    each = held.per_word if held.packed == held.columns else 1
    taken = [slice(None), slice(None)]
    taken[held.columns] = slice(first // each, (first + n) // each)
    return np.ascontiguousarray(tensor[tuple(taken)])
