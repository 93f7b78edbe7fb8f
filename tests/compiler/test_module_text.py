"""Contract under test: what ``compiler.module_text`` rewrites in the PTX that a compiler prints."""

import re

import pytest

from numba_marlin.compiler import module_text


def test_a_tensor_map_is_read_as_nothing_else():
    text = (
        ".visible .entry k(\n\t.param .u64 k_param_0\n)\n{\n\tld.param.u32 \t%r1, [k_param_0];\n}\n"
    )
    with pytest.raises(ValueError, match="parameter 0 of k"):
        module_text.pass_by_value(text, "k", [0])
    with pytest.raises(ValueError, match="parameter 1 of k 0 times"):
        module_text.pass_by_value(text, "k", [1])


def debug_strings(*names):
    lines = (
        f"$L__info_string{index}:\n.b8 {','.join(map(str, name.encode()))},0\n\n"
        for index, name in enumerate(names)
    )
    return "\t.section\t.debug_str\n\t{\n" + "".join(lines) + "\t}\n"


def test_inlined_functions_are_counted_from_1_whatever_was_compiled_before():
    """The tags that numba-cuda puts behind a name: the number of the function, the options that
    it was first compiled with; only the types of the arguments are kept."""
    early = debug_strings("_ZN1k3oneB2v7B5cAbcdE5Thing", "_ZN1k3twoB2v9E", "_ZN1k6threeB1E")
    late = debug_strings("_ZN1k3oneB5v6711B3cXyE5Thing", "_ZN1k3twoB4v130E", "_ZN1k6threeB1E")
    code = ".visible .entry k() {\n\t// B2v7B5cAbcdE\n}\n"
    assert module_text.number_functions(code + early) == module_text.number_functions(code + late)
    assert module_text.number_functions(code + late) == code + debug_strings(
        "_ZN1k3oneB2v1E5Thing", "_ZN1k3twoB2v2E", "_ZN1k6threeB1E"
    )
    assert module_text.number_functions(code) == code
    long = module_text.number_functions(debug_strings("_ZN" + "a" * 60 + "B4v999E"))
    assert [line.count(",") for line in long.splitlines() if ".b8" in line] == [39, 28]


def test_shared_arrays_are_counted_from_1():
    text = (
        ".visible .entry kernel()\n{\n.shared .b8 _cudapy_smem_11[8];\n"
        ".shared .b8 _cudapy_smem_1[8];\nmov.u64 %rd1, _cudapy_smem_1;\n"
        "mov.u64 %rd2, _cudapy_smem_11;\n}\n"
    )
    assert re.findall(r"smem_\d+", module_text.tidy(text, "k")) == [
        "smem_1",
        "smem_2",
        "smem_2",
        "smem_1",
    ]
