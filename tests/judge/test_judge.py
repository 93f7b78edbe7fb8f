"""Contract under test: a right kernel passes, and every planted defect is found, with its name, its
line, its thread and its element."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import judge
from numba_marlin.errors import CapabilityMissing
from numba_marlin.judge import cases, task
from numba_marlin.judge.judging import Judge, Options, right
from numba_marlin.judge.judging import judge as judged
from numba_marlin.judge.launching import Kernel
from numba_marlin.judge.verdict import defect_of, page
from numba_marlin.views import html, text
from tests.judge.kernels import ATOMIC, NOT_READ, RIGHT, TASK, WRONG, changed

QUICK = Options(cases=2, schedules=1, budget=1_000)


def kernel(text):
    return Kernel(text, None, "sums", False)


def verdict(text, of=TASK, options=QUICK):
    return judged(of, kernel(text), options)


def first(found):
    return next(each.defect for each in found.cases if each.defect)


def small(of=TASK, most=20, **changes):
    return replace(of, **{"sizes": {"n": judge.Size(1, most)}} | changes)


def test_a_right_kernel_passes():
    found = verdict(RIGHT)
    assert found.passed and found.complete and not found.kinds
    assert {each.why for each in found.cases} >= {"smallest", "largest", "drawn"}
    assert found.runs == len(found.cases) * (1 + QUICK.schedules)


SLOW = ("adds in the order of chance",)  # atomics


@pytest.mark.parametrize(
    "what",
    [pytest.param(w, marks=[pytest.mark.thorough] * (w in SLOW)) for w in WRONG],
)
def test_a_planted_defect_is_found_for_what_it_is(what):
    ptx, kind, said = WRONG[what]
    found = verdict(ptx, options=replace(QUICK, cases=0))
    assert not found.passed and found.kinds[0] == kind
    assert "\n".join(line.strip() for line in said.splitlines()) in "\n".join(
        line.strip() for line in str(first(found)).splitlines()
    )


def test_a_defect_names_line_thread_and_element():
    defect = first(verdict(WRONG["writes one too far"][0]))
    assert (defect.array, defect.element) == ("y", "[1]")
    assert defect.where.ptx == "st.global.f32 [%rd2+4], %f1;"
    assert defect.where.block == defect.where.thread == (0, 0, 0)


def test_an_input_that_no_case_reads_is_a_defect():
    zeros = replace(
        small(),
        arguments=[judge.Input("x", "float32", ("n",), fill="zeros"), *TASK.arguments[1:]],
    )
    found = verdict(NOT_READ, zeros)
    assert found.kinds == ("input-not-read",) and found.defects[0].array == "x"
    assert not any(each.defect for each in found.cases)
    allowed = judge.Input("x", "float32", ("n",), fill="zeros", may_ignore=True)
    assert verdict(NOT_READ, replace(small(), arguments=[allowed, *TASK.arguments[1:]])).passed


def test_a_task_may_allow_any_order_of_sums():
    wide = judge.Input("x", "float32", ("n",), fill="wide")  # sums whose order shows
    of = replace(small(), arguments=[wide, *TASK.arguments[1:]], sizes={"n": judge.Size(64, 64)})
    options = Options(cases=0, schedules=4)
    assert verdict(ATOMIC, of, options).kinds == ("nondeterministic",)
    assert verdict(ATOMIC, replace(of, deterministic=False), options).passed


@pytest.mark.thorough
def test_what_passes_the_edges_is_found_among_drawn_sizes_and_shrunk():
    """Wrong for n = 67 to 119: no edge is among them."""
    wrong = changed(
        "  ld.shared.f32 %f1, [part];\n",
        "  ld.shared.f32 %f1, [part];\n  setp.gt.u32 %p1, %r1, 66;\n"
        "  setp.lt.and.u32 %p1, %r1, 120, %p1;\n"
        "  @%p1 mul.f32 %f1, %f1, 0f40000000;\n",
    )
    of = replace(TASK, arguments=[_ones(), *TASK.arguments[1:]])
    found = verdict(wrong, of, Options(cases=100, schedules=0))
    assert found.kinds == ("wrong-value",)
    (failed,) = [each for each in found.cases if each.defect]
    assert (failed.why, failed.sizes) == ("drawn", {"n": 67})


def _ones():
    return judge.Input("x", "float32", ("n",), fill="ones")


def test_what_an_address_is_aligned_to_is_tried():
    wide = changed("  ld.global.f32 %f1, [%rd1];\n", "  ld.global.v2.f32 {%f1, %f2}, [%rd1];\n")
    wide = wide.replace("%r4, %r3, 64, %r2;", "%r4, %r3, 64, %r2;\n  shl.b32 %r4, %r4, 1;", 1)
    pairs = replace(
        TASK,
        sizes={"n": judge.Size(2, 128, multiple_of=2)},
        arguments=[
            judge.Input("x", "float32", ("n",), alignment=8),
            judge.Output("y", "float32", (1,)),
            TASK.arguments[2],
        ],
        reference=lambda x: x[::2].sum(keepdims=True),
        bound=1e-4,
        grid=1,
    )
    assert verdict(wide, pairs).passed
    loose = judge.Input("x", "float32", ("n",), alignment=4)
    found = verdict(wide, replace(pairs, arguments=[loose, *pairs.arguments[1:]]))
    assert found.kinds == ("misaligned",)


def test_what_lies_in_front_of_a_loosely_aligned_array_is_guarded():
    before = WRONG["writes before the array"][0]
    loose = judge.Output("y", "float32", TASK.arguments[1].shape, alignment=4)
    arguments = [TASK.arguments[0], loose, TASK.arguments[2]]
    moved = Judge(replace(TASK, arguments=arguments), kernel(before), QUICK)
    given = task.problem(moved.task, {"n": 5}, 0)
    made = moved._run(given, moved._way(1, 0))
    assert made.error is None and moved._defect(made, given).kind == "out-of-bounds"
    # the first of two defects
    moved.kernel = kernel(before.replace("%rd2+-4], %f1;\n", "%rd2+-4], %f1;\n  trap;\n"))
    made = moved._run(given, moved._way(1, 0))
    assert made.error.kind == "trap" and moved._defect(made, given).kind == "out-of-bounds"


def test_orders_differ_in_garbage_and_places_too():
    first, second = (Judge(TASK, kernel(RIGHT), QUICK)._way(number, 7) for number in range(2))
    assert first.poison != second.poison and first.reverse != second.reverse
    given = task.problem(TASK, {"n": 5}, 0)
    made = [Judge(TASK, kernel(RIGHT), QUICK)._run(given, way) for way in (first, second)]
    order = [each.watched["x"].buffer.address < each.watched["y"].buffer.address for each in made]
    assert order == [True, False]


def test_arrays_are_of_a_bounded_size():
    with pytest.raises(ValueError, match="choose smaller sizes"):
        task.problem(small(sizes={"n": judge.Size(1 << 25, 1 << 25)}), {"n": 1 << 25}, 0)


def test_module_variables_are_fresh_in_each_run():
    counting = RIGHT.replace(".visible .entry", ".global .align 4 .u32 calls;\n.visible .entry")
    counting = changed(
        "  ld.shared.f32 %f1, [part];\n",
        "  ld.shared.f32 %f1, [part];\n  atom.global.add.u32 %r1, [calls], 1;\n"
        "  setp.gt.u32 %p1, %r1, 0;\n  @%p1 mul.f32 %f1, %f1, 0f40000000;\n",
        counting,
    )
    assert verdict(counting, small()).passed


def test_a_bound_of_zero_means_the_reference_rounded():
    expected = np.array([1 / 3, 1e300, np.nan, np.inf, 2.0])
    got = np.array([1 / 3, np.inf, np.nan, np.inf, np.nextafter(np.float32(2), 3)], np.float32)
    assert right(got, expected, np.zeros(5)).tolist() == [True] * 4 + [False]
    near = right(np.array([7, 200], np.uint8), np.array([9, 3]), np.array([2, 2]))
    assert near.tolist() == [True, False]


def test_bounds_of_sums_hold_and_are_not_loose():
    rng = np.random.default_rng(1)
    for terms in (1, 7, 1000):
        x = rng.standard_normal((50, terms)).astype(np.float32)
        y = rng.standard_normal((50, terms)).astype(np.float32)
        total = np.zeros(50, np.float32)
        for column in range(terms):
            total += x[:, column] * y[:, column]
        exact = (x.astype(float) * y).sum(1)
        bound = judge.sum_bound(terms, abs(x.astype(float) * y).sum(1))
        assert (abs(total - exact) <= bound).all()
        assert (bound <= 1e-4 * abs(x.astype(float) * y).sum(1) + 1e-30).all()


def test_the_verdict_goes_through_plain_data():
    for ptx in (RIGHT, WRONG["no barrier in the tree"][0]):
        found = verdict(ptx, small()).as_dict()
        shown = page(found)
        assert "sums" in text.render(shown) and "<html" in html.render(shown)
        for each in found["cases"]:
            assert each["passed"] == (each["defect"] is None)
            if each["defect"]:
                assert defect_of(each["defect"]).as_dict() == each["defect"]


def test_the_same_seed_gives_the_same_verdict():
    of = small(most=2)
    assert verdict(RIGHT, of).as_dict() == verdict(RIGHT, of).as_dict()


def test_no_case_begins_when_time_is_up():
    found = verdict(RIGHT, options=replace(QUICK, seconds=1e-9))
    assert not found.complete and not found.passed and not found.cases


def test_without_hypothesis_nothing_is_drawn_and_that_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(CapabilityMissing, match=r"numba-marlin\[judge\]"):
        verdict(RIGHT, small(most=2))
    assert verdict(RIGHT, small(most=2), replace(QUICK, cases=0)).passed


def test_an_endless_kernel_is_not_tried_in_every_case():
    found = verdict(WRONG["never ends"][0])
    assert [each.kind for each in found.cases] == ["budget"] * 2


def test_the_budget_grows_with_the_launch():
    """The right kernel takes some dozens of instructions a warp, whatever the case."""
    assert verdict(RIGHT, options=replace(QUICK, cases=0, budget=120)).passed
    assert verdict(RIGHT, options=replace(QUICK, cases=0, budget=20)).kinds == ("budget",)


def test_edges_are_valid_and_few():
    many = replace(
        TASK,
        sizes={name: judge.Size(1, 500) for name in "nabcdef"},
        valid=lambda a, b: a != b,
    )
    found = cases.edges(many, 0)
    assert 1 < len(found) <= cases.MOST_EDGES
    assert all(each.named["a"] != each.named["b"] for each in found)
    assert len({each.sizes for each in found}) == len(found)


@pytest.mark.parametrize(
    "change, said",
    (
        ({"arguments": [TASK.arguments[0]]}, "nothing to judge"),
        ({"arguments": [*TASK.arguments, judge.Input("x", "int32", 1)]}, "x: each size"),
        ({"arguments": [*TASK.arguments, judge.Input("z", "complex64", 1)]}, "complex64"),
        ({"arguments": [*TASK.arguments, judge.Input("z", "int23", 1)]}, "int23"),
        ({"arguments": [*TASK.arguments, judge.Input("z z", "int32", 1)]}, "is no name"),
        ({"arguments": [*TASK.arguments, judge.Input("z", "int32", 1, fill="norml")]}, "norml"),
        ({"arguments": [*TASK.arguments, judge.Input("z", "int32", 1, alignment=3)]}, "power"),
        ({"checks": "strictest"}, "strictest"),
        ({"reference": 3}, "must be a function"),
    ),
)
def test_a_task_that_means_nothing_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        replace(TASK, **change)


@pytest.mark.parametrize(
    "change, said",
    (
        ({"reference": lambda x: x}, "reference of y has shape"),
        ({"reference": lambda x: ()}, "gives 0 results"),
        ({"reference": lambda x: {"z": x}}, "nothing for y"),
        ({"reference": lambda x: "abc"}, "must be numbers"),
        ({"reference": lambda q: q}, "reference asks for q"),
        ({"reference": lambda x: x[1000]}, "reference ends with IndexError"),
        ({"bound": -1}, "0 or more"),
        ({"bound": lambda x: np.nan}, "0 or more"),
        ({"grid": 0}, "grid=0 must be"),
        ({"grid": lambda n: 1 << 40}, "choose smaller sizes"),
        ({"block": (1, 2, 3, 4)}, "one to three"),
        ({"valid": lambda: False}, "no case"),
    ),
)
def test_a_task_that_does_not_fit_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        verdict(RIGHT, replace(TASK, **change))


@pytest.mark.parametrize("given", ((0, 0, 3), (-1, 5), (5, 4), (1, 3, 8), (1, 3, 1, (7,))))
def test_a_size_without_values_is_refused(given):
    if given == (0, 0, 3):
        assert list(judge.Size(*given).values()) == [0]
        return
    with pytest.raises(ValueError):
        judge.Size(*given)


def test_arguments_that_do_not_fit_the_kernel_are_refused():
    few = replace(TASK, arguments=TASK.arguments[:2])
    with pytest.raises(ValueError, match="takes 3 parameters .*, the task passes 2: x"):
        verdict(RIGHT, few)
    wide = replace(TASK, arguments=[*TASK.arguments[:2], judge.Scalar("n", "int64", "n")])
    with pytest.raises(ValueError, match="parameter 2 of sums takes 4 bytes"):
        verdict(RIGHT, wide)
