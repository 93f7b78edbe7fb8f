"""Contract under test: vLLM's linear layers with our method, on every rank of a tensor-parallel
group (one after another in this process), loaded by vLLM's own parameters and loaders: the ranks'
products together are those of the whole, and what cannot be so is refused by name.

Skipped and run as ``test_vllm``.
"""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)

import numba_marlin as nm  # noqa: E402
from numba_marlin.formats.files import find_stored  # noqa: E402
from numba_marlin.torch import cpu_backend  # noqa: E402
from tests.torch_room.layers import product, tensor  # noqa: E402

pytestmark = pytest.mark.thorough
K, GROUP, HEAD = 256, 32, 32
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
ORDERED = GPTQ | {"desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": GROUP,
                "symmetric": False,
            },
        }
    },
}
STATED = {"gptq": GPTQ, "ordered": ORDERED, "awq": AWQ, "pack-quantized": PACKED}
FORMS = {"gptq": "gptq", "ordered": "gptq", "awq": "awq", "pack-quantized": "pack-quantized"}
USUAL = {"bias": False, "params_dtype": torch.float16, "return_bias": False}
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


@pytest.fixture
def as_rank(monkeypatch, vllm, plugin):
    """as_rank(rank, world): what is made from now on is that rank's."""
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear

    def become(rank, world):
        for module in (linear, parameter):
            monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
            monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: world)

    return become


def weight(n, seed=0, k=K, kind="gptq", order=None, **more):
    w = np.random.default_rng(seed).standard_normal((k, n), np.float32)
    symmetric = kind in ("gptq", "ordered")
    q = nm.quantize(w, **({"group_size": GROUP, "symmetric": symmetric} | more))
    if kind == "ordered":
        order = np.random.default_rng(k if order is None else order).permutation(k)
        q = replace(q, permutation=order.astype(np.int32))
    return q


def config_of(plugin, kind, **more):
    config = plugin.Config.from_config(STATED[kind] | more)
    config.packed_modules_mapping = FUSED
    return config


def load(layer, kind, weights, parts=None):
    """Hand the tensors of files to the layer as vLLM's models do. parts: vLLM's names of the fused
    ones."""
    for q, part in zip(weights, [()] if parts is None else [(part,) for part in parts]):
        for name, array in find_stored(FORMS[kind]).write(q).items():
            parameter = getattr(layer, name, None)
            if parameter is None:
                assert name == "weight_g_idx" or (name == "g_idx" and kind == "awq"), name
                continue
            parameter.weight_loader(parameter, torch.from_numpy(np.array(array)), *part)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def qkv(config, bias=False):
    from vllm.model_executor.layers.linear import QKVParallelLinear

    more = USUAL | {"bias": bias, "prefix": "l.0.qkv_proj"}
    return QKVParallelLinear(K, HEAD, 4, 2, quant_config=config, **more)


def down(config, k=K, n=64):
    from vllm.model_executor.layers.linear import RowParallelLinear

    more = USUAL | {"reduce_results": False, "prefix": "l.0.down_proj"}
    return RowParallelLinear(k, n, quant_config=config, **more)


@pytest.mark.parametrize("world", (1, 2, 4))
@pytest.mark.parametrize("kind", STATED)
def test_q_k_and_v_of_every_rank(plugin, as_rank, kind, world):
    """Four heads of q and two of k and v, which on four ranks are on two each."""
    weights = [weight(n * HEAD, n, kind=kind) for n in (4, 2, 2)]
    x = tensor(5, K)
    whole = [product(x, q) for q in weights]
    for rank in range(world):
        as_rank(rank, world)
        layer = load(qkv(config_of(plugin, kind)), kind, weights, "qkv")
        taken, replicas = [], max(1, world // 2)
        for y, ranks, mine in zip(
            whole, (world, world // replicas, world // replicas), (rank, *[rank // replicas] * 2)
        ):
            taken.append(y.chunk(ranks, -1)[mine])
        assert torch.equal(layer(x), torch.cat(taken, -1))


@pytest.mark.parametrize("world", (1, 2, 4))
@pytest.mark.parametrize("kind", STATED)
def test_gate_and_up_of_every_rank(plugin, as_rank, kind, world):
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    weights = [weight(96, seed, kind=kind) for seed in (1, 2)]
    x = tensor(5, K)
    whole = [product(x, q) for q in weights]
    for rank in range(world):
        as_rank(rank, world)
        more = USUAL | {"prefix": "l.0.gate_up_proj"}
        config = config_of(plugin, kind)
        layer = MergedColumnParallelLinear(K, [96, 96], quant_config=config, **more)
        load(layer, kind, weights, (0, 1))
        wanted = torch.cat([y.chunk(world, -1)[rank] for y in whole], -1)
        assert torch.equal(layer(x), wanted)


@pytest.mark.parametrize("world", (1, 2, 4))
@pytest.mark.parametrize("kind", STATED)
def test_rows_of_every_rank(plugin, as_rank, monkeypatch, kind, world):
    """The ranks' products sum to the whole's. In activation order each rank asks the others for
    their x."""
    q, x, gathered = weight(64, kind=kind), tensor(5, K).double(), []
    monkeypatch.setattr(
        plugin, "tensor_model_parallel_all_gather", lambda part: gathered.append(part) or x
    )
    total = torch.zeros((5, 64), dtype=torch.float64)
    for rank in range(world):
        as_rank(rank, world)
        layer = load(down(config_of(plugin, kind)), kind, [q])
        total += layer(x.chunk(world, -1)[rank])
    torch.testing.assert_close(total, product(x, q), rtol=0, atol=1e-9)
    asked = range(world) if kind == "ordered" and world > 1 else ()
    assert len(gathered) == len(asked)
    for rank, part in zip(asked, gathered):
        assert torch.equal(part, x.chunk(world, -1)[rank])


@pytest.mark.parametrize("kind", STATED)
@pytest.mark.parametrize("name", ("ReplicatedLinear", "ColumnParallelLinear"))
def test_layers_that_are_not_fused(plugin, as_rank, name, kind):
    from vllm.model_executor.layers import linear

    q, x = weight(64, kind=kind), tensor(5, K)
    for rank in range(2):
        as_rank(rank, 2)
        config, more = config_of(plugin, kind), USUAL | {"prefix": "l.0.up_proj"}
        layer = load(getattr(linear, name)(K, 64, quant_config=config, **more), kind, [q])
        whole = product(x, q)
        replicated = name == "ReplicatedLinear"
        assert torch.equal(layer(x), whole if replicated else whole.chunk(2, -1)[rank])


def test_a_group_that_ranks_cut(plugin, as_rank):
    """vLLM's own kernels refuse it: rows 0..191 and 192..383 share a group of 128."""
    q, x = weight(64, k=384, group_size=128), tensor(5, 384).double()
    total = torch.zeros((5, 64), dtype=torch.float64)
    for rank in range(2):
        as_rank(rank, 2)
        layer = load(down(config_of(plugin, "gptq", group_size=128), k=384), "gptq", [q])
        total += layer(x.chunk(2, -1)[rank])
    torch.testing.assert_close(total, product(x, q), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ("gptq", "ordered", "awq"))
def test_layers_that_are_fused_in_the_files(plugin, as_rank, kind):
    q, x = weight(8 * HEAD, kind=kind), tensor(5, K)
    whole = product(x, q).split([4 * HEAD, 2 * HEAD, 2 * HEAD], -1)
    for rank in range(2):
        as_rank(rank, 2)
        layer = load(qkv(config_of(plugin, kind)), kind, [q])
        assert torch.equal(layer(x), torch.cat([y.chunk(2, -1)[rank] for y in whole], -1))


def test_fused_layers_of_different_orders_are_several_products(plugin, as_rank):
    weights = [weight(n * HEAD, n, kind="ordered", order=n) for n in (4, 2, 3)]
    weights[2] = replace(
        weights[2], codes=weights[2].codes[:, :64], scales=weights[2].scales[:, :64]
    )
    as_rank(0, 1)
    layer = qkv(config_of(plugin, "ordered"), bias=True)
    layer.bias.data.normal_()
    load(layer, "ordered", weights, "qkv")
    assert len(layer.packed) == 3
    x = tensor(5, K)
    assert torch.equal(layer(x), product(x, *weights, bias=layer.bias))


@pytest.mark.parametrize("kind", ("gptq", "ordered"))
def test_a_layer_compiles_whole(plugin, as_rank, kind):
    weights = [weight(n * HEAD, n, kind=kind) for n in (4, 2, 2)]
    as_rank(0, 1)
    layer, x = load(qkv(config_of(plugin, kind)), kind, weights, "qkv"), tensor(5, K)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.equal(compiled(x), layer(x)) and torch.equal(compiled(x[:3]), layer(x[:3]))


def test_batch_invariance_is_asked_for(plugin, as_rank, monkeypatch):
    as_rank(0, 1)
    asked = []
    monkeypatch.setattr(
        plugin.Linear, "_product", lambda self, x, bias: asked.append(self.batch_invariant)
    )
    for stated, variable, wanted in (
        ({}, "0", False),
        ({"batch_invariant": True}, "0", True),
        ({}, "1", True),
    ):
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", variable)
        layer = load(down(config_of(plugin, "gptq", **stated)), "gptq", [weight(64)])
        layer(tensor(5, K))
        assert asked.pop() is wanted
    with pytest.raises(ValueError, match="batch_invariant='yes' must be true or false"):
        config_of(plugin, "gptq", batch_invariant="yes")


@pytest.mark.parametrize("backend", ("reference", "emulator"))
def test_a_row_has_the_same_bits_in_every_batch(plugin, as_rank, backend):
    """Of compiled kernels too, in activation order."""
    if backend == "emulator":
        pytest.importorskip("numba_cuda", reason="compiles the kernel")
    as_rank(0, 1)
    config = config_of(plugin, "ordered", batch_invariant=True)
    layer = load(down(config), "ordered", [weight(64, kind="ordered")])
    x = tensor(20, K)
    with cpu_backend(backend):
        whole = layer(x)
        for first, m in ((0, 1), (19, 1), (3, 16)):
            assert torch.equal(layer(x[first : first + m]), whole[first : first + m])


# ---- what is refused


def test_sizes_that_no_kernel_multiplies(plugin, as_rank):
    as_rank(1, 4)
    with pytest.raises(
        ValueError, match="'l.0.down_proj': k=96 over 4 ranks must be a multiple of"
    ):
        down(config_of(plugin, "gptq"), k=96)
    with pytest.raises(
        ValueError, match="'l.0.down_proj': n=60 of a rank must be .* multiple of 8"
    ):
        down(config_of(plugin, "gptq"), n=60)
    with pytest.raises(ValueError, match="'l.0.down_proj': group_size=48 must divide k=256"):
        down(config_of(plugin, "gptq", group_size=48))


def test_fused_layers_that_are_stored_differently(plugin, as_rank):
    as_rank(0, 1)
    config = config_of(plugin, "gptq", dynamic={"+:.*v_proj": {"bits": 8}})
    with pytest.raises(ValueError, match="'l.0.qkv_proj' is .*, which must be stored alike"):
        qkv(config)


def test_experts_are_refused_if_they_are_quantised(plugin, as_rank):
    from vllm.model_executor.layers.fused_moe import RoutedExperts

    experts = RoutedExperts.__new__(RoutedExperts)
    with pytest.raises(ValueError, match="layer 'l.0.experts': its experts are quantised, and"):
        config_of(plugin, "gptq").get_quant_method(experts, "l.0.experts")
    config = config_of(plugin, "awq", modules_to_not_convert=["experts"])
    assert config.get_quant_method(experts, "l.0.experts") is None


def test_attention_and_float_tables_are_left_to_vllm(plugin, as_rank):
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    head = ParallelLMHead.__new__(ParallelLMHead)
    assert config_of(plugin, "gptq").get_quant_method(head, "lm_head") is None
    assert config_of(plugin, "gptq").get_quant_method(torch.nn.Identity(), "l.0.attn") is None
    with pytest.raises(ValueError, match="layer 'lm_head' is quantised"):
        config_of(plugin, "gptq", lm_head=True).get_quant_method(head, "lm_head")


@pytest.mark.parametrize(
    "name, change, said",
    (
        ("scales", lambda data: data.fill_(float("nan")), "scales"),
        ("g_idx", lambda data: data.fill_(-1), "g_idx was not loaded"),
        ("g_idx", lambda data: data.fill_(3), "g_idx gives"),
    ),
)
def test_what_was_loaded_and_cannot_be(plugin, as_rank, name, change, said):
    """Also what was never loaded: scales begin as no numbers. Nothing of the layer is changed."""
    as_rank(0, 1)
    layer = down(config_of(plugin, "ordered"))
    process = layer.quant_method.process_weights_after_loading
    layer.quant_method.process_weights_after_loading = lambda _: None
    load(layer, "ordered", [weight(64, kind="ordered")])
    change(getattr(layer, name).data)
    before = sorted(name for name, _ in layer.named_parameters())
    with pytest.raises(ValueError, match=f"layer 'l.0.down_proj': .*{said}"):
        process(layer)
    assert sorted(name for name, _ in layer.named_parameters()) == before


def test_what_was_never_loaded(plugin, as_rank):
    as_rank(0, 1)
    layer = down(config_of(plugin, "gptq"))
    with pytest.raises(ValueError, match="layer 'l.0.down_proj': .*scales"):
        layer.quant_method.process_weights_after_loading(layer)


def test_an_index_of_another_length(plugin, as_rank):
    as_rank(0, 1)
    layer = down(config_of(plugin, "ordered"))
    with pytest.raises(ValueError, match=r"g_idx has shape \(8,\), must have \(256,\)"):
        layer.g_idx.weight_loader(layer.g_idx, torch.zeros(8, dtype=torch.int32))
