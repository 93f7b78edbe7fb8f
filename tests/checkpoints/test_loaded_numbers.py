"""Contract under test: the numbers that other libraries compute with after loading a directory of
ours are ours, bit for bit, and so are the layer's outputs.

Seen to pass with transformers 5.23, torch 2.14 and compressed-tensors 0.20; GPTQ and AWQ with
optimum 2.3 and GPTQModel 7.7 (its plain torch kernels: no GPU, nothing to compile). Skipped where
one is not installed: the extra ``loaders`` brings them all. Nobody loads these here: ModelOpt's
directories (transformers has no loader; compressed-tensors' converter reads them), Marlin's and
vLLM's (they need a GPU), gpt-oss's (we do not write them; their decoder reads our MXFP4).
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")
ml_dtypes = pytest.importorskip("ml_dtypes")

from safetensors.torch import load_file, save_file  # noqa: E402
from transformers.utils import quantization_config  # noqa: E402

import numba_marlin as nm  # noqa: E402
from numba_marlin import reference  # noqa: E402
from numba_marlin.cli import main as cli  # noqa: E402

pytestmark = [
    pytest.mark.thorough,  # each loads a model
    pytest.mark.filterwarnings("ignore"),
]
EVERY, SOME = ["*_proj.weight"], ["*.mlp.*_proj.weight", "*.1.self_attn.o_proj.weight"]
INTEGERS = [
    ["--group-size", "32"],
    ["--group-size", "32", "--asymmetric"],
    ["--group-size", "-1"],
    ["--group-size", "32", "--bits", "8"],
]
ACT_ORDER = ["--group-size", "32", "--method", "gptq", "--act-order", "--calib"]
STATIC_GROUPS = ["--static-groups", *ACT_ORDER]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A directory of a small model in float16, with samples of its layers' inputs beside it. The
    largest number of every matrix is 6 x 448 times a power of two: then so is NVFP4's global scale,
    and every number of it fits into the bfloat16 in which compressed-tensors computes it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        vocab_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.float16)
    inputs = {}
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            largest = 6 * 448 * 2.0**-15
            module.weight.data.clamp_(-largest, largest)[0, 0] = largest
            inputs[name] = torch.randn(256, module.in_features)
    path = tmp_path_factory.mktemp("loaded") / "source"
    model.save_pretrained(path)
    save_file(inputs, path.parent / "inputs.safetensors")
    return path


def written(source, target, form, options=(), patterns=EVERY):
    options = [*options, source.parent / "inputs.safetensors"] if "--calib" in options else options
    argv = ["quantize", source, target, "--format", form, *options]
    argv += [each for pattern in patterns for each in ("--tensor", pattern)]
    assert cli.main([str(each) for each in argv]) == 0
    return target


def loaded(path, quantization, dtype=torch.float16):
    model, report = transformers.LlamaForCausalLM.from_pretrained(
        path, dtype=dtype, quantization_config=quantization, output_loading_info=True
    )
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


@torch.no_grad()
def assert_ours(model, path, source):
    """Our reader gives the source's numbers but for rounding them (a zero point that is off by one
    would be four times as much). Each layer gives each of our weights for a row of the identity,
    rounded once to the model's type, and for other rows what the float64 product allows. What was
    left in float is as it was."""
    dtype = {torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}[model.dtype]
    weights, modules = nm.load_checkpoint(path), dict(model.named_modules())
    floats = load_file(source / "model.safetensors")

    def product(module, x):
        return module(torch.from_numpy(x).to(model.dtype)).to(torch.float32).numpy().astype(dtype)

    for name in weights:
        weight = weights[name]
        exact, before = nm.dequantize(weight, np.float64), floats[f"{name}.weight"].numpy().T
        codes = 2.0 ** getattr(weight, "bits", 4)
        assert np.linalg.norm(exact - before) < 4 / codes * np.linalg.norm(before), name
        found = product(modules[name], np.eye(weight.k, dtype=np.float32))
        assert np.array_equal(found, exact.astype(dtype)), name
        x = np.random.default_rng(0).standard_normal((9, weight.k)).astype(dtype)
        y = product(modules[name], x.astype(np.float32))
        verdict = reference.check(y, x, weight, method="weights")
        assert verdict.ok, f"{name}: {verdict}"
    assert len(weights) > 6
    for name, values in floats.items():
        if name.removesuffix(".weight") not in weights:
            there = modules[name.removesuffix(".weight")].weight
            assert torch.equal(there, values.to(model.dtype)), name


@torch.no_grad()
def logits(model):
    return model(torch.arange(20)[None]).logits


@torch.no_grad()
def logits_of_float_weights(source, path, dtype):
    """Those of the float model with our numbers in the place of its own."""
    model = transformers.LlamaForCausalLM.from_pretrained(source, dtype=dtype)
    modules, weights = dict(model.named_modules()), nm.load_checkpoint(path)
    before = logits(model)
    for name in weights:
        numbers = nm.dequantize(weights[name], np.float64).T
        modules[name].weight.copy_(torch.from_numpy(np.ascontiguousarray(numbers)))
    after = logits(model)
    assert not torch.equal(before, after)
    return after


def case(form_or_options):
    each = form_or_options
    return each if isinstance(each, str) else " ".join(each)


@pytest.mark.parametrize("patterns", [EVERY, SOME], ids=["every layer", "some layers"])
@pytest.mark.parametrize(
    ("form", "options"),
    [("pack-quantized", each) for each in [*INTEGERS, STATIC_GROUPS]]
    + [("nvfp4-pack-quantized", []), ("mxfp4-pack-quantized", [])],
    ids=case,
)
def test_compressed_tensors(tmp_path, source, form, options, patterns):
    """Dequantised while loading, and as it is: then the first product decompresses it. Of the
    second, compressed-tensors 0.20 does not do everything, with its own files either: on the meta
    device it gives packed zero points the shape of unpacked ones, and FP4 becomes bfloat16 whatever
    the model's type is."""
    path = written(source, tmp_path / "q", form, options, patterns)
    config = quantization_config.CompressedTensorsConfig
    dense = loaded(path, config(dequantize=True))
    assert torch.equal(logits(dense), logits_of_float_weights(source, path, torch.float16))
    assert_ours(dense, path, source)
    if "--asymmetric" not in options:
        dtype = torch.bfloat16 if "fp4" in form else torch.float16
        compressed = loaded(path, config(dequantize=False), dtype)
        assert torch.equal(logits(compressed), logits_of_float_weights(source, path, dtype))
        assert_ours(compressed, path, source)


def test_groups_in_activation_order_are_refused_by_name_where_they_are_not_known(tmp_path, source):
    """compressed-tensors 0.20 has given them up. Did our configuration not say ``actorder``, it
    would take the rows for ordered, and give wrong numbers."""
    path = written(source, tmp_path / "q", "pack-quantized", ACT_ORDER)
    with pytest.raises(ValueError, match="actorder='group' has been removed"):
        loaded(path, None)


@pytest.mark.parametrize("patterns", [EVERY, SOME], ids=["every layer", "some layers"])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("options", [*INTEGERS, ACT_ORDER], ids=case)
def test_gptq(tmp_path, source, form, options, patterns):
    optimum_and_gptqmodel()
    path = written(source, tmp_path / "q", form, options, patterns)
    assert_ours(loaded(path, transformers.GPTQConfig(bits=4, backend="torch")), path, source)


@pytest.mark.parametrize("patterns", [EVERY, SOME], ids=["every layer", "some layers"])
@pytest.mark.parametrize("options", INTEGERS[:3], ids=case)
def test_awq(tmp_path, source, options, patterns):
    optimum_and_gptqmodel()
    path = written(source, tmp_path / "q", "awq", options, patterns)
    assert_ours(loaded(path, transformers.AwqConfig(backend="torch_awq")), path, source)


@pytest.mark.parametrize("form", ["gptq", "gptq_v2", "awq"])
def test_gptqmodel_by_itself(tmp_path, source, form):
    """It asks for a tokenizer, and of version 1 only for symmetric weights (it takes zero points in
    it from nobody but itself: write ``gptq_v2``)."""
    gptqmodel, backend = gptqmodel_on_a_cpu(form)
    path = written(source, tmp_path / "q", form, INTEGERS[form == "awq"], SOME)
    tokenizer(path)
    loaded = gptqmodel.load(str(path), backend=backend, device="cpu", dtype=torch.float16)
    assert_ours(loaded.model, path, source)


def test_gptqmodel_takes_no_zero_points_of_version_1(tmp_path, source):
    gptqmodel, backend = gptqmodel_on_a_cpu("gptq")
    path = written(source, tmp_path / "q", "gptq", INTEGERS[1])
    tokenizer(path)
    with pytest.raises(ValueError, match="sym=False .* only supported if produced by gptqmodel"):
        gptqmodel.load(str(path), backend=backend, device="cpu", dtype=torch.float16)


@pytest.mark.parametrize("form", ["gptq", "awq", "pack-quantized"])
def test_what_was_converted(tmp_path, source, form):
    first = "pack-quantized" if form != "pack-quantized" else "gptq"
    before = written(source, tmp_path / "q", first, INTEGERS[0], SOME)
    path = tmp_path / "converted"
    assert cli.main(["convert", str(before), str(path), "--to", form]) == 0
    if form != "pack-quantized":
        optimum_and_gptqmodel()
    config = {
        "gptq": transformers.GPTQConfig(bits=4, backend="torch"),
        "awq": transformers.AwqConfig(backend="torch_awq"),
        "pack-quantized": quantization_config.CompressedTensorsConfig(dequantize=True),
    }[form]
    assert_ours(loaded(path, config), path, source)
    ours, theirs = nm.load_checkpoint(path), nm.load_checkpoint(before)
    for name in theirs:
        assert np.array_equal(nm.dequantize(ours[name]), nm.dequantize(theirs[name]))


def test_the_decoder_of_gpt_oss_reads_our_mxfp4(tmp_path, source):
    """Blocks of 16 bytes, [1, n, k / 32, 16], and their scales: the same bytes as ours."""
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    path = written(source, tmp_path / "q", "mxfp4-pack-quantized")
    tensors, weights = load_file(path / "model.safetensors"), nm.load_checkpoint(path)
    for name in weights:
        packed, scales = tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"]
        numbers = mxfp4.convert_moe_packed_tensors(
            packed.view(1, len(packed), -1, 16), scales[None], dtype=torch.float32
        )
        assert np.array_equal(numbers[0].numpy(), nm.dequantize(weights[name], np.float64)), name


def test_compressed_tensors_converts_modelopts_directory_to_ours(tmp_path, source):
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters")
    path = written(source, tmp_path / "modelopt", "modelopt-nvfp4")
    ours = load_file(written(source, tmp_path / "q", "nvfp4-pack-quantized") / "model.safetensors")
    converter = converters.ModelOptNvfp4Converter(targets=[r"re:.*_proj$"])
    theirs = converter.validate(load_file(path / "model.safetensors"))
    assert set(theirs) == set(ours)
    for name in ours:
        assert torch.equal(theirs[name].reshape(ours[name].shape), ours[name]), name


def optimum_and_gptqmodel():
    for library in ("optimum", "gptqmodel"):
        pytest.importorskip(library, reason="transformers loads GPTQ and AWQ with its help")


def gptqmodel_on_a_cpu(form):
    optimum_and_gptqmodel()
    from gptqmodel import BACKEND, GPTQModel

    return GPTQModel, BACKEND.TORCH_AWQ if form == "awq" else BACKEND.TORCH


def tokenizer(path):
    """The smallest there is, into the directory ``path``."""
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(path)
