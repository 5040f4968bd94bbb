"""Nothing is made on the wrong device: hosts, captures, metrics and layers run on CUDA tensors that hold no memory.

`FakeTensorMode` computes shapes, types and devices alone, so that a machine without a GPU sees what a GPU would refuse.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext, suppress

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from lightning_modules.networks import create_network
from structured_init import analysis, discover_attention, initialize, layers
from structured_init.analysis import capture_attention

MAPS = (2, 2, 17, 17)  # two samples, two heads, a class token and 4×4 patches
GRID = {"grid": (4, 4), "prefix_tokens": 1}
HEADS = {"num_heads": 2}


@pytest.fixture
def fake_cuda():
    """Tensors of device cuda on any machine; new ones are on the CPU, as in a program that forgets the device."""
    with FakeTensorMode(), torch.no_grad():
        yield


def like(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")


def moved(model):
    """Do what ``model.to("cuda")`` does to parameters and buffers, and to nothing else that a module may hold."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(like(parameter))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = like(buffer)
    return model


@pytest.fixture
def any_device(monkeypatch):
    """On a machine without the device its random state is not there."""
    if not torch.cuda.is_available():
        fork = torch.random.fork_rng
        monkeypatch.setattr(torch.random, "fork_rng", lambda *_, **__: fork(devices=[]))
        monkeypatch.setattr(torch.cuda, "default_generators", [torch.Generator()])


def tensors(output):
    """Every tensor of a result, however nested."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = output.values()
    return [t for each in output for t in tensors(each)] if isinstance(output, list | tuple | type({}.values())) else []


# Fused and written out, windows, two kinds of attention in a layer, grouped queries; written layouts and watched ones.
ATTENDING = ("ViT of timm", "Swin", "decoder of torch", "BERT", "GPT-2", "Llama with tied embeddings", "Whisper")


@pytest.mark.parametrize("name", ATTENDING)
def test_maps_are_captured_from_a_model_on_the_device(name, hosts, any_device):
    model, inputs = hosts[name].build().eval(), hosts[name].inputs
    with FakeTensorMode(), torch.no_grad():
        maps = capture_attention(moved(model), **inputs("cuda"))
    assert maps
    assert all(map.shape[0] >= 2 and map.shape[-1] == map.shape[-2] for map in maps.values())


def statistics():
    """The functions of attention maps that are listed in the analysis package, with what they ask for besides."""
    asked = {
        "offsets": lambda: torch.ones(2, 2, dtype=torch.long, device="cuda"),
        "tokens": lambda: torch.ones(MAPS[0], MAPS[-1], dtype=torch.long, device="cuda"),
        **{k: lambda v=v: v for k, v in GRID.items()},
    }
    for name in sorted(analysis.__all__):
        function = getattr(analysis, name)
        if inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") in (
            "maps",
            "before",
        ):
            names = list(inspect.signature(function).parameters)
            if "filter" not in name and (names[:2] == ["before", "after"] or names[0] == "maps"):
                yield name, {key: asked[key] for key in names if key in asked}


@pytest.mark.parametrize("name", dict(statistics()))
def test_statistics_of_maps_run_on_the_device(name, fake_cuda):
    function = getattr(analysis, name)
    maps = torch.rand(MAPS, device="cuda").softmax(-1)
    count = 2 if "after" in inspect.signature(function).parameters else 1
    with suppress(DynamicOutputShapeException, DataDependentOutputException):  # as far as no number is needed
        function(*[maps] * count, **{key: make() for key, make in dict(statistics())[name].items()})


def same(one, two):
    """Whether two results hold the same bits on the CPU, where not a number is one as well."""
    pairs = list(zip(tensors(one), tensors(two), strict=True))
    return all(a.device.type == b.device.type == "cpu" for a, b in pairs) and all(
        torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in pairs
    )


@pytest.mark.parametrize("name", ["Swin", "decoder of torch", "GPT-2"])
def test_another_default_device_changes_nothing_that_is_seen_of_a_host(name, hosts):
    model, inputs = hosts[name].build().eval(), hosts[name].inputs("cpu")
    looks = (
        lambda: capture_attention(model, **inputs),
        lambda: {each.name: vars(each.evidence) for each in discover_attention(model, inputs) if each.evidence},
    )
    for look in looks:
        expected = look()
        with torch.device("meta"):
            found = look()
        assert same(expected, found)
        assert isinstance(next(iter(tensors(expected)), None), torch.Tensor) or str(found) == str(expected)


def test_another_default_device_changes_no_statistic():
    maps = torch.rand(MAPS, generator=torch.Generator().manual_seed(0)).softmax(-1)
    tokens = torch.ones(MAPS[0], MAPS[-1], dtype=torch.long)
    asked = {"offsets": torch.ones(2, 2, dtype=torch.long), "tokens": tokens, **GRID}
    for name, _ in statistics():
        function = getattr(analysis, name)
        names = inspect.signature(function).parameters
        given = [maps] * (2 if "after" in names else 1)
        further = {key: value for key, value in asked.items() if key in names}
        expected = [function(*given, **further)]
        with torch.device("meta"):
            assert same(expected, [function(*given, **further)]), name


@pytest.fixture
def any_autocast(monkeypatch):
    """Autocast knows no meta tensors."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


LAYERS = {
    "CayleyConv2d": (lambda: layers.CayleyConv2d(4, 4, 3), (2, 4, 8, 8)),
    "CayleyConv2d with strides": (lambda: layers.CayleyConv2d(4, 4, 3, stride=2), (2, 4, 8, 8)),
    "CayleyLinear": (lambda: layers.CayleyLinear(6, 4), (2, 6)),
    "MaxMin": (layers.MaxMin, (2, 4, 8, 8)),
    "SequencePooling": (lambda: layers.SequencePooling(8), (2, 5, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_evaluate_on_the_device_and_train_on_meta(name, any_autocast):
    build, shape = LAYERS[name]
    layer, inputs = build().to("meta"), torch.rand(shape, device="meta", requires_grad=True)
    layer(inputs).sum().backward()
    assert inputs.grad.device.type == "meta"
    assert {p.grad.device.type for p in layer.parameters()} <= {"meta"}
    layer = build()
    with FakeTensorMode(), torch.no_grad():
        assert moved(layer)(torch.rand(shape, device="cuda")).device.type == "cuda"
        assert layer.eval()(torch.rand(shape, device="cuda")).device.type == "cuda"


@pytest.mark.parametrize("network", ["cct_2_3x2_32", "convmixer_8_2_k3_p2"])
def test_networks_by_name_run_on_the_device_and_train_on_meta(network, any_autocast):
    model = create_network(network, num_classes=3, image_size=32, in_channels=3).to("meta")
    model(torch.rand(2, 3, 32, 32, device="meta")).sum().backward()
    assert {p.grad.device.type for p in model.parameters() if p.grad is not None} == {"meta"}
    model = create_network(network, num_classes=3, image_size=32, in_channels=3)
    with FakeTensorMode(), torch.no_grad():
        assert moved(model)(torch.rand(2, 3, 32, 32, device="cuda")).device.type == "cuda"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU")
def test_a_gpu_gets_the_weights_of_a_cpu(good_pairs):
    for pair in good_pairs:
        here, there = pair.model(), pair.model().cuda()
        for model in (here, there):
            initialize(model, pair.initializer(), seed=3)
        for name, expected in here.state_dict().items():
            found = there.state_dict()[name]
            assert found.is_cuda, (pair.name, name)
            far = (found.cpu() - expected).abs().max()
            measured = pair.name.startswith(("PreviousToken", "Induction"))
            assert far <= (1e-6 * expected.abs().max() if measured else 0), (pair.name, name)
