"""The norms equal PyTorch's and transformers' modules, and have the geometry that their docstrings state."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from norm_geometry import norms

# One rounding of the result, in units of its size: ours rounds once, some modules twice.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6}
BACKENDS = {"numpy": lambda x: x, "torch": torch.from_numpy}


def vectors(largest=1e4, dtype=np.float64):
    coordinates = st.floats(-largest, largest, width=8 * dtype().itemsize)
    return st.tuples(st.integers(0, 3), st.integers(1, 9)).flatmap(
        lambda shape: arrays(dtype, shape, elements=coordinates)
    )


def parameters(d, dtype):
    generator = torch.Generator().manual_seed(d)
    return [torch.randn(d, generator=generator).to(dtype) for _ in range(2)]


INPUTS = {
    "ordinary": lambda d: torch.randn(7, d),
    "far from zero": lambda d: 100 + torch.randn(7, d),
    "constant": lambda d: torch.full((2, d), 0.1),
    "zero": lambda d: torch.zeros(2, d),
    "huge": lambda d: 1e30 * torch.randn(7, d),
    "tiny": lambda d: 1e-30 * torch.randn(7, d),
    "one vector": lambda d: torch.randn(d),
    "no vectors": lambda d: torch.randn(0, d),
    "three axes": lambda d: torch.randn(2, 3, d),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("d", [1, 2, 64])
def test_equal_to_the_modules_people_use(kind, d, dtype):
    torch.manual_seed(0)
    x = INPUTS[kind](d).to(dtype)
    gain, bias = parameters(d, dtype)
    # In float64, which the squares of huge float32 coordinates do not leave, the modules are the reference.
    reference = torch.float64 if kind == "huge" else dtype

    layer = torch.nn.LayerNorm(d, eps=1e-5).to(reference)
    layer.weight.data, layer.bias.data = gain.to(reference), bias.to(reference)
    modules = [(layer, norms.layer_norm(x, gain, bias, eps=1e-5))]
    for module, ours in (
        (torch.nn.RMSNorm(d, eps=1e-6), norms.rms_norm(x, gain, eps=1e-6)),
        (LlamaRMSNorm(d, eps=1e-6), norms.rms_norm(x, gain, eps=1e-6)),
        (GemmaRMSNorm(d, eps=1e-6), norms.rms_norm(x, 1 + gain.float(), eps=1e-6)),
    ):
        module.weight.data = gain.to(reference)
        if not (kind == "huge" and not isinstance(module, torch.nn.RMSNorm)):  # transformers' compute in float32
            modules.append((module, ours))

    for module, ours in modules:
        expected = module(x.to(reference)).detach()
        assert ours.dtype == dtype
        assert ours.shape == x.shape
        scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
        torch.testing.assert_close(ours.double(), expected.double(), rtol=0, atol=ROUNDING[dtype] * scale)


@pytest.mark.parametrize("backend", BACKENDS)
@given(x=vectors())
def test_numpy_and_torch_agree_and_keep_type(backend, x):
    given_x = BACKENDS[backend](x)
    for function in (norms.project, norms.normalize, norms.layer_norm, norms.rms_norm):
        y = function(given_x)
        assert type(y) is type(given_x)
        np.testing.assert_allclose(np.asarray(y), function(x), rtol=1e-12, atol=1e-12)


@given(x=vectors(), eps=st.sampled_from([0.0, 1e-12, 1e-5, 0.1]))
def test_layer_norm_is_its_steps(x, eps):
    d = x.shape[-1]
    gain, bias = np.linspace(-1, 2, d), np.linspace(3, 4, d)
    steps = norms.scale_and_shift(norms.normalize(norms.project(x), eps), gain, bias)
    np.testing.assert_allclose(norms.layer_norm(x, gain, bias, eps=eps), steps, rtol=1e-12, atol=1e-12)


@given(x=vectors())
def test_projection_is_orthogonal_to_the_uniform_vector_and_idempotent(x):
    p = norms.project(x)
    size = 1 + np.abs(x).max(initial=0)
    np.testing.assert_allclose(p.sum(axis=-1), 0, atol=1e-10 * size)
    np.testing.assert_allclose(norms.project(p), p, atol=1e-10 * size)


@given(x=vectors(dtype=np.float32), exponent=st.integers(-60, 60))
def test_normalized_vectors_lie_on_the_sphere(x, exponent):
    y = norms.normalize(x * np.float32(2.0**exponent))
    zero = (x * np.float32(2.0**exponent) == 0).all(axis=-1)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1)[~zero], np.sqrt(x.shape[-1]), rtol=1e-6)
    assert (y[zero] == 0).all()


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_float64_keeps_its_whole_range(size):
    np.testing.assert_allclose(
        norms.normalize(size * np.array([3.0, 4.0])), np.sqrt(2) * np.array([0.6, 0.8]), rtol=1e-15
    )


@given(x=vectors(), eps=st.sampled_from([1e-5, 1e-2, 1.0]))
def test_with_epsilon_the_radius_is_as_stated(x, eps):
    d, sigma = x.shape[-1], x.std(axis=-1)
    radius = np.linalg.norm(norms.layer_norm(x, eps=eps), axis=-1)
    np.testing.assert_allclose(radius, np.sqrt(d) * sigma / np.sqrt(sigma**2 + eps), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("value", [0.1, -3.7e8, 1e30, 1e-30])
def test_a_constant_vector_goes_exactly_to_the_bias(value, eps, dtype):
    bias = np.arange(7, dtype=dtype)
    x = np.full((2, 7), value, dtype=dtype)
    assert (norms.layer_norm(x, bias=bias, eps=eps) == bias).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_norm_equals_torch_in_training_and_in_inference(backend):
    x = np.random.default_rng(0).normal(3, 2, (50, 6))
    reference = torch.nn.BatchNorm1d(6, momentum=1.0).double()
    reference.weight.data, reference.bias.data = torch.linspace(1, 2, 6).double(), torch.linspace(-1, 0, 6).double()
    gain, bias = reference.weight.detach().numpy(), reference.bias.detach().numpy()
    convert = BACKENDS[backend]
    trained = norms.batch_norm(convert(x), gain=convert(gain), bias=convert(bias))
    np.testing.assert_allclose(trained, reference(torch.from_numpy(x)).detach(), rtol=1e-12)

    mean, variance = reference.running_mean.numpy(), reference.running_var.numpy()
    y = norms.batch_norm(*map(convert, (x[:3], mean, variance, gain, bias)))
    np.testing.assert_allclose(y, reference.eval()(torch.from_numpy(x[:3])).detach(), rtol=1e-12)


def test_gradients_flow_as_through_torch():
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 8, dtype=torch.float64)
    (ours,) = torch.autograd.grad((weights * norms.layer_norm(x)).sum(), x)
    (reference,) = torch.autograd.grad((weights * torch.nn.functional.layer_norm(x, (8,))).sum(), x)
    torch.testing.assert_close(ours, reference)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: norms.layer_norm(np.zeros((2, 3)), gain=np.ones(4)), "gain has shape"),
        (lambda: norms.layer_norm(np.zeros((2, 0))), "last axis"),
        (lambda: norms.batch_norm(np.zeros((2, 3)), mean=np.zeros(3)), "both mean and variance"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_input_is_named_in_one_line(call, message, unchecked):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
