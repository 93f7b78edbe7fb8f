"""Contract under test: what the walk says that the host hands over is what a launch passes."""

import functools
from dataclasses import replace

import pytest

from numba_marlin.cli.traced_host import ROLES, handed_over
from numba_marlin.trace.pages import host
from numba_marlin.views import text
from numba_marlin.views.page import Page, Section
from tests.trace import block_runs
from tests.trace.runs import RUNS, launch


@functools.cache
def binding_of(name):
    if name == "decode":
        *_, prepared = launch(**RUNS[name])
    else:
        _, prepared = block_runs.prepared(name)
    return prepared.binding


@pytest.mark.parametrize("name", ["decode", "tcgen05", "block_decode"])
def test_each_parameter_is_what_is_passed(name):
    binding = binding_of(name)
    found = handed_over(binding)["parameters"]
    addresses = {name: 4096 * at for at, name in enumerate(binding.buffers, 1)}
    passed = binding.arguments(addresses, lambda made, address: (made, address))
    assert [(name, kind) for name, kind, _ in found] == list(binding.definition.parameters)
    kinds = set()
    for (parameter, kind, what), value in zip(found, passed):
        if kind == "tensormap":
            made, address = value
            operand = next(each for each, its in addresses.items() if its == address)
            assert what.startswith(f"tensor map of {operand}: ")
            assert " x ".join(map(str, made.box)) in what
        elif kind == "i32":
            assert what == str(value)
        else:
            assert what.startswith("null" if value == 0 else "address of "), parameter
            assert value in (0, addresses.get(parameter))
        kinds.add(what.split()[0])
    assert "address" in kinds
    assert name != "decode" or ("null:" in kinds and ROLES["result"] in str(found))


def test_attributes_of_a_launch_are_said():
    earlier = "it may begin before the launch before it has ended"
    for name in ("decode", "tcgen05", "block_decode"):
        binding = binding_of(name)
        options = binding.definition.launch_options(binding.config)
        said = handed_over(binding)["attributes"]
        assert (earlier in said) == options["dependent"]
        assert (f"clusters of {options['cluster']} blocks" in said) == (options["cluster"] > 1)
        assert len(said) == (options["cluster"] > 1) + options["dependent"]


def test_the_host_is_shown_where_it_was_recorded():
    found, *_ = block_runs.recorded("tcgen05")
    assert host.parts(found) == ()  # recorded without it, as are files of earlier versions
    binding = binding_of("tcgen05")
    about = {
        "host": handed_over(binding),
        "kind": "operands",
        "kernel": "tcgen05",
        "problem": {"m": 128, "bias": False},
        "config": {"stages": 4},
        "reasons": ["a reason"],
        "compiled": {"compiler": "numba-cuda", "registers": None},
    }
    shown = replace(found, header=found.header | {"about": about})
    page = Page("", (Section("host", "", (), host.parts(shown)),))
    said = text.render(page, 100)
    for words in ("nm.block_scaled_matmul", "because  a reason", "a_map", "tcgen05: stages=4"):
        assert words in said
    assert "bias=False" not in said and "registers" not in said
