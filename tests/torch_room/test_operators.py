"""Contract under test: a product in torch is that of ``numba_marlin.matmul``, also compiled,
exported and differentiated. Skipped without torch."""

import numpy as np
import pytest

import numba_marlin as nm

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")
from numba_marlin.torch import operators  # noqa: E402  after the skip

K, N = 64, 72


def weight(kind="int4"):
    w = np.random.default_rng(5).standard_normal((K, N), np.float32)
    if kind in ("nvfp4", "mxfp4"):
        return nm.pack(nm.quantize(w, format=kind))
    options = {
        "int4": {"group_size": 32},
        "int8": {"bits": 8, "group_size": -1},
        "zeros": {"group_size": 32, "symmetric": False},
    }[kind.removesuffix(" ordered")]
    q = nm.quantize(w, **options)
    if kind.endswith("ordered"):
        from dataclasses import replace

        q = replace(q, permutation=np.random.default_rng(1).permutation(K).astype(np.int32))
    return nm.pack(q)


KINDS = ("int4", "int8", "zeros", "zeros ordered", "nvfp4", "mxfp4")


def operands(p, x, bias=None):
    return x, *operators.tensors_of(p), bias, operators.signature_of(p), False


def tensor(shape, dtype=torch.float16, **more):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_matmul(kind):
    p, x, bias = weight(kind), tensor((3, K)), tensor(N)
    expected = nm.matmul(x.numpy(), p, "reference", bias=bias.numpy())
    assert np.array_equal(nmt.matmul(x, p, bias).numpy(), expected)
    batches = nmt.matmul(x.reshape(3, 1, K), p, bias)
    assert batches.shape == (3, 1, N) and np.array_equal(batches[:, 0].numpy(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_dequantize_is_that_of_the_package(kind):
    p = weight(kind)
    for dtype in (torch.float16, torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        assert np.array_equal(nmt.dequantize(p, dtype).numpy(), nm.dequantize(p, name))


def test_no_rows_give_no_rows():
    assert nmt.matmul(tensor((0, K)), weight()).shape == (0, N)


@pytest.mark.parametrize("kind", ("int4", "zeros ordered", "nvfp4"))
@pytest.mark.parametrize("with_bias", (False, True))
@pytest.mark.thorough
def test_torch_finds_nothing_wrong_with_the_operators(kind, with_bias):
    """Schema, autograd registration, fake tensors, and ahead-of-time tracing."""
    p, bias = weight(kind), tensor(N) if with_bias else None
    for x in (tensor((3, K)), tensor((3, K)).requires_grad_()):
        torch.library.opcheck(torch.ops.numba_marlin.matmul.default, operands(p, x, bias))
    given = (*operators.tensors_of(p), operators.signature_of(p), torch.float16)
    torch.library.opcheck(torch.ops.numba_marlin.dequantize.default, given)


@pytest.mark.parametrize("kind", ("int4", "zeros ordered", "mxfp4"))
def test_gradients_of_x_and_bias_are_right(kind):
    p = weight(kind)
    x, bias = (tensor(s, torch.float64).requires_grad_() for s in ((2, K), N))
    assert torch.autograd.gradcheck(lambda x, bias: nmt.matmul(x, p, bias), (x, bias))


def test_the_gradient_of_half_x_is_that_of_the_dequantised_weight():
    p, x = weight(), tensor((3, K)).requires_grad_()
    grad = tensor((3, N))
    nmt.matmul(x, p).backward(grad)
    assert torch.equal(x.grad, grad @ nmt.dequantize(p).t())


@pytest.mark.thorough
def test_torch_compile_breaks_no_graph():
    p, x = weight().to("cpu", "torch"), tensor((3, K))
    compiled = torch.compile(
        lambda x: nmt.matmul(x * 2, p) + 1, fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(x), nmt.matmul(x * 2, p) + 1)
    on_host = weight()
    with pytest.raises(Exception, match="a weight's arrays must be tensors"):
        torch.compile(lambda x: nmt.matmul(x, on_host), fullgraph=True, backend="eager")(x)


@pytest.mark.thorough
def test_torch_export_keeps_the_operator():
    layer = nmt.Linear.from_packed(weight())
    program = torch.export.export(layer, (tensor((3, K)),))
    assert "numba_marlin.matmul" in str(program.graph)
    assert torch.equal(program.module()(tensor((3, K))), layer(tensor((3, K))))


@pytest.mark.thorough
def test_the_same_product_on_the_machine():
    p, x = weight(), tensor((2, K))
    with nmt.cpu_backend("emulator"):
        y = nmt.matmul(x, p)
    expected = nm.matmul(x.numpy(), p, "emulator")
    assert np.array_equal(y.numpy(), expected)
    assert operators._cpu_backend == "reference"


def test_wrong_arguments_are_refused_by_name():
    p = weight()
    with pytest.raises(ValueError, match=r"x.shape=\(3, 65\) must be \(m, k\) with k=64"):
        nmt.matmul(tensor((3, 65)), p)
    with pytest.raises(ValueError, match="name='fast' must be one of reference, emulator"):
        with nmt.cpu_backend("fast"):
            pass
    with pytest.raises(ValueError, match="must come from .*signature_of"):
        operators.parsed("PackedWeight os.system('x')")
    with pytest.raises(ValueError, match="must come from .*signature_of"):
        operators.parsed("object {}")
    with pytest.raises(ValueError, match="bias.shape"):
        nmt.matmul(tensor((3, K)), p, tensor(N + 8))


def test_arrays_that_do_not_fit_the_signature_are_refused():
    """A kernel reads by the sizes of the signature: smaller arrays must not get there."""
    p, x = weight(), tensor((3, K))
    qweight, *others = operators.tensors_of(p)
    with pytest.raises(ValueError, match="qweight.shape"):
        torch.ops.numba_marlin.matmul(
            x, qweight[:2].contiguous(), *others, None, operators.signature_of(p), False
        )


def test_arrays_that_are_no_tensors_are_refused_while_compiling(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(TypeError, match=r"must be tensors, not a ndarray: pass p.to"):
        operators.tensors_of(weight())
    assert operators.tensors_of(weight().to("cpu", "torch"))[0] is not None


@pytest.mark.thorough
def test_shapes_and_types_are_known_without_numbers():
    """What torch.compile and torch.export ask."""
    p, x = weight().to("cpu", "torch"), tensor((3, K))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        y = torch.ops.numba_marlin.matmul(*operands(p, mode.from_tensor(x)))
        assert (tuple(y.shape), y.dtype) == ((3, N), x.dtype)
        with pytest.raises(RuntimeError, match=r"must be \(m, k\) with k=64"):
            torch.ops.numba_marlin.matmul(*operands(p, mode.from_tensor(x[:, 1:])))
        with pytest.raises(RuntimeError, match="must have 2 dimensions"):
            torch.ops.numba_marlin.matmul(*operands(p, mode.from_tensor(x[0])))
