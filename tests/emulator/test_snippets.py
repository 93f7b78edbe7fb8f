"""Contract under test: every file of ptx/ does on the PTX machine what an independent NumPy formula
says (``formulas``).

Each snippet is wrapped, mechanically, into a kernel (``snippets``). A file without a formula fails.
"""

from pathlib import Path

import numpy as np
import pytest

from numba_marlin.isa import load_instructions
from tests.emulator.formulas import FORMULAS, brain_numbers
from tests.emulator.snippets import THREADS, World, draw, run_on_machine

# overflow and NaN are what is tested
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

INSTRUCTIONS = load_instructions()
IMMEDIATES = {
    "lop3": {"table": 0xEA},
    "prmt_b32": {"selector": 0x7531},
    "cp_async_wait_group": {"n": 0},
    "keep_f32": {"width": 3},
    "keep_u32": {"width": 2},
    "keep_i32": {"width": 4},
    "zero_f32": {"width": 5},
    "zero_i32": {"width": 3},
}

# Instructions that mean nothing alone: how the modules that test them begin, out of the same files
# (ptx_cases.snippet).
ELSEWHERE = {
    "test_mbarrier": (
        "mbarrier_init mbarrier_inval mbarrier_arrive mbarrier_arrive_expect_tx mbarrier_expect_tx"
        " mbarrier_try_wait_parity mbarrier_test_wait_parity fence_mbarrier_init"
    ),
    "test_counted_stores": "cp_async_mbarrier_arrive_noinc",
    "test_bulk_copy": (
        "cp_async_bulk_prefetch cp_async_bulk_g2s cp_async_bulk_g2s_hint cp_async_bulk_s2g"
        " cp_async_bulk_commit_group cp_async_bulk_wait_group cp_async_bulk_wait_group_read"
        " create_policy_evict_last fence_proxy_async_shared fence_proxy_async_global"
    ),
    "test_tensor_copy": (
        "cp_async_bulk_tensor_1d_g2s cp_async_bulk_tensor_1d_g2s_hint cp_async_bulk_tensor_2d_g2s"
        " cp_async_bulk_tensor_2d_g2s_hint cp_async_bulk_tensor_2d_g2s_cta"
        " cp_async_bulk_tensor_2d_s2g prefetch_tensormap"
    ),
    "test_cluster": (
        "cluster_ctarank cluster_arrive cluster_wait mapa_shared mbarrier_arrive_cluster"
        " fence_acq_rel_cluster cp_async_bulk_g2s_multicast cp_async_bulk_tensor_2d_g2s_multicast"
    ),
    "test_wgmma": (
        "wgmma_fence wgmma_commit_group wgmma_wait_group wgmma_wait_group_f32"
        " wgmma_m64k16_f32_f16_rs wgmma_m64k16_f32_f16_ss wgmma_m64k16_f32_bf16_rs"
        " wgmma_m64k16_f32_bf16_ss wgmma_wait_group_i32 wgmma_m64k32_s32_u8_s8_rs"
        " wgmma_m64k32_s32_s8_s8_rs wgmma_m64k32_s32_u8_s8_ss wgmma_m64k32_f32_e4m3_e4m3_rs"
        " wgmma_m64k32_f32_e4m3_e4m3_ss"
    ),
    "test_tcgen05": (
        "tcgen05_alloc tcgen05_dealloc tcgen05_relinquish_alloc_permit tcgen05_mma_mxf4nvf4_4x"
        " tcgen05_mma_mxf4_2x tcgen05_mma_mxf8f6f4_1x tcgen05_commit tcgen05_cp_32x128b_warpx4"
        " tcgen05_ld_32x32b_f32 tcgen05_st_32x32b_f32 tcgen05_wait_ld tcgen05_wait_st"
        " tcgen05_fence_before_thread_sync tcgen05_fence_after_thread_sync"
    ),
    "test_block_scale": "mma_m16n8k64_f32_mxf4nvf4_4x mma_m16n8k64_f32_mxf4_2x",
    "test_machine_registers": "clock64 globaltimer smid setmaxnreg_inc setmaxnreg_dec",
}
TESTED_ELSEWHERE = {name: module for module, names in ELSEWHERE.items() for name in names.split()}
OPAQUE = {"create_policy_evict_first"}  # its result says nothing; the *_hint copies use it


def same(actual, expected, dtype):
    """Equal bits; for floating-point results any NaN counts as a NaN (a quiet one's payload is not
    specified)."""
    if dtype is None:
        return (actual == expected).all()
    if dtype == "bfloat16":
        bits = [
            np.ascontiguousarray(v.astype(np.uint32)).view(np.uint16) for v in (actual, expected)
        ]
        nan = [np.isnan(brain_numbers(v)) for v in bits]
        return ((bits[0] == bits[1]) | nan[0] & nan[1]).all()
    narrow = [np.ascontiguousarray(v.astype(np.uint32)).view(dtype) for v in (actual, expected)]
    bits = [v.view({2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]) for v in narrow]
    return ((bits[0] == bits[1]) | (np.isnan(narrow[0]) & np.isnan(narrow[1]))).all()


def result_type(name):
    if "bf16x2" in name:
        return "bfloat16"
    if name.startswith(("add_f16", "sub_f16", "mul_f16", "fma_rn_f16", "cvt_rn_f16")):
        return np.float16
    return (
        np.float32
        if name.startswith(("fma_rn_f32", "cvt_f32", "max_f32", "min_f32", "rcp", "ex2"))
        else None
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(set(INSTRUCTIONS) - OPAQUE - set(TESTED_ELSEWHERE)))
def test_snippet_computes_its_formula(name, seed):
    assert name in FORMULAS, f"ptx/{name}.ptx has no formula: add one to FORMULAS"
    instruction, generator = (
        INSTRUCTIONS[name].resolved(**IMMEDIATES.get(name, {})),
        np.random.default_rng(seed),
    )
    world = World(
        {o.name: draw(instruction, o, generator) for o in instruction.inputs},
        generator.integers(0, 1 << 32, (THREADS, 4), dtype=np.uint32),
        generator.integers(0, 1 << 32, (THREADS, 4), dtype=np.uint32),
    )
    before = World(dict(world.inputs), world.shared.copy(), world.memory.copy())
    actual = run_on_machine(instruction, IMMEDIATES.get(name, {}), world)
    expected = FORMULAS[name](before)
    if instruction.outputs:
        assert same(actual, expected, result_type(name))
    assert (world.shared == before.shared).all()
    assert (world.memory == before.memory).all()


def test_every_formula_belongs_to_a_file():
    assert set(FORMULAS) | set(TESTED_ELSEWHERE) == set(INSTRUCTIONS) - OPAQUE
    assert not set(FORMULAS) & set(TESTED_ELSEWHERE)


@pytest.mark.parametrize("name", TESTED_ELSEWHERE)
def test_what_is_tested_elsewhere_is(name):
    """In a module whose name begins so, or in a piece of PTX that it has from another one."""
    subject = TESTED_ELSEWHERE[name].removeprefix("test_")
    texts = [
        path.read_text()
        for pattern in (f"test_{subject}*.py", f"{subject}*.py", "async_ptx.py")
        for path in Path(__file__).parent.glob(pattern)
    ]
    assert any(f'"{name}"' in text for text in texts)
