"""Contract under test: the recipes of CONTRIBUTING.md, each followed once: an instruction is a
file, an opcode a function, a format a class that registers, a GPU a row."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from numba_marlin import isa
from numba_marlin.emulator import UnknownInstruction
from numba_marlin.emulator.instructions import HANDLERS, allow, instruction, type_of
from numba_marlin.formats import QuantizedWeight, changes, stored
from numba_marlin.formats.stored import Geometry, StoredFormat, TensorSpec, group_rows, matrix
from numba_marlin.formats.streams import Stream
from numba_marlin.hardware import devices
from tests.emulator.ptx_cases import compute, words

ROOT = Path(__file__).resolve().parent.parent
RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BMSK = """\
// A mask of b bits that begins at bit a; what lies beyond bit 31 is cut off.
// name: bmsk_clamp_b32
// outputs: d: u32
// inputs: a: u32, b: u32
// effects: none
// arch: sm_70
// isa: https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-bmsk

bmsk.clamp.b32 <d>, <a>, <b>;
"""


def test_the_places_that_recipes_name_exist():
    """Files in backticks or links, and tests after ``::``."""
    named = re.findall(
        r"`((?:numba_marlin|tests|experiments|docs|\.ci)/[\w./]+)(?:::(\w+))?", RECIPES
    )
    assert len(named) > 10
    for path, test in named:
        if "NAME" in path:
            continue
        found = ROOT / path
        assert found.exists(), path
        assert not test or f"def {test}(" in found.read_text(encoding="utf-8"), test


@pytest.fixture
def ones():
    """The opcode's handler, as the recipe writes one; gone after the test."""
    before = dict(HANDLERS)

    @instruction("ones")
    def mask(ins, m):
        """bmsk, by a name that the machine does not have"""
        allow(ins, "clamp", "wrap")
        kind = type_of(ins, "b32")
        d, a, b = m.bind(ins, kind, kind, kind)
        wrap = "wrap" in ins.modifiers

        def step(lanes):
            s = lanes.sel
            first, width = (x[s].astype(np.uint64) for x in (a, b))
            if wrap:
                first, width = first % 32, width % 32
            first, width = np.minimum(first, 32), np.minimum(width, 32)
            one = np.uint64(1)
            d[s] = ((one << width) - one << first).astype(np.uint32)

        return step

    yield
    HANDLERS.clear()
    HANDLERS.update(before)


def masks(first, width):
    """In Python's integers."""
    pairs = zip(first.tolist(), width.tolist())
    return [((1 << min(b, 32)) - 1 << min(a, 32)) & 0xFFFFFFFF for a, b in pairs]


def test_an_unknown_opcode_is_refused():
    with pytest.raises(UnknownInstruction, match="ones"):
        compute("ones.clamp.b32 %d, %a, %b;", words(64), words(64), out=np.uint32)


def test_add_an_opcode(ones):
    first, width = (each.reshape(-1) for each in np.indices((40, 40), np.uint32))
    found = compute("ones.clamp.b32 %d, %a, %b;", first, width, out=np.uint32)
    assert found.tolist() == masks(first, width)


def test_a_modifier_that_the_handler_does_not_name_is_refused(ones):
    with pytest.raises(UnknownInstruction, match="sat"):
        compute("ones.sat.b32 %d, %a, %b;", words(64), words(64), out=np.uint32)


def test_add_an_instruction(tmp_path):
    (tmp_path / "bmsk_clamp_b32.ptx").write_text(BMSK)
    (found,) = isa.load_instructions(tmp_path).values()
    assert found.pure and [each.name for each in found.inputs] == ["a", "b"]
    template, constraints = found.assembly()
    assert constraints == "=r,r,r"
    body = template.replace("$0", "%d").replace("$1", "%a").replace("$2", "%b")
    first, width = words(200, seed=1) % 40, words(200, seed=2) % 40
    assert compute(body, first, width, out=np.uint32).tolist() == masks(first, width)


def test_an_instruction_file_that_is_wrong_says_where(tmp_path):
    path = tmp_path / "bmsk_clamp_b32.ptx"
    path.write_text(BMSK.replace("<b>", "<c>"))
    with pytest.raises(isa.InstructionError, match=rf"{re.escape(str(path))}:\d+: "):
        isa.load_instructions(tmp_path)


@dataclass(frozen=True)
class TwoToAByte(StoredFormat):
    """uint8 [k/2, n]: rows 2 i and 2 i + 1 of a column in the low and the high half of a byte."""

    def geometry(self, tensors):
        rows, n = matrix("codes", tensors["codes"])
        groups, _ = matrix("scales", tensors["scales"])
        return Geometry(2 * rows, n, 4, group_rows(2 * rows, groups))

    def specs(self, geometry):
        k, n = geometry.k, geometry.n
        packing = Stream("k", "k", "uint8")
        return {
            "codes": TensorSpec(("uint8",), packing.shape(k, n, 4), packing, (k, n)),
            "scales": TensorSpec(("float16",), (geometry.groups, n)),
        }

    def prepare(self, weight):
        if weight.zeros is not None:
            raise ValueError(f"zero points do not fit in format {self.name!r}: quantise anew")
        return changes.with_bits(weight, self.bits, self.name), ()

    def encode(self, weight, codec):
        specs = self.specs(Geometry(weight.k, weight.n, 4, weight.group_size))
        codes = codec.pack(specs["codes"].packing, weight.codes, 4)
        return {"codes": codes, "scales": weight.scales}

    def decode(self, tensors, geometry, codec):
        packing = self.specs(geometry)["codes"].packing
        codes = codec.unpack(packing, tensors["codes"], 4)
        return QuantizedWeight(codes, np.array(tensors["scales"]), None, 4, geometry.group)


def test_add_a_format(monkeypatch):
    monkeypatch.setattr(stored, "STORED", {})
    form = stored.register_stored(
        TwoToAByte("two-to-a-byte", "Two codes to a byte", "here", ("codes", "scales"))
    )
    assert stored.STORED == {"two-to-a-byte": form}
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (64, 24), np.uint8)
    scales = rng.random((2, 24)).astype(np.float16)
    tensors = form.write(QuantizedWeight(codes, scales, None, 4, 32))
    assert (tensors["codes"] == codes[0::2] | codes[1::2] << 4).all()
    weight = form.read(tensors)
    assert (weight.codes == codes).all() and weight.group_size == 32
    with pytest.raises(stored.FormatError, match="has unknown zeros"):
        form.read({**tensors, "zeros": scales})


def test_add_a_device(monkeypatch):
    row = dataclasses.replace(devices.device("H200"), name="H999", sms=200)
    monkeypatch.setattr(devices, "SPECIFICATIONS", (*devices.SPECIFICATIONS, row))
    assert devices.device("H999").sms == 200
    assert devices.device("H999").target == "sm_90a"
