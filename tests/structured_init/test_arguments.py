"""Numbers out of range are refused where they are given, by the name of the argument: in every initializer there is."""

from __future__ import annotations

import inspect
import math
import re

import pytest
import torch
from torch import nn

import structured_init
from structured_init import (
    AdamSolver,
    Compose,
    Conditioned,
    DeltaOrthogonal,
    FilterCovariance,
    Impulse,
    Initializer,
    KaimingUniform,
    MambaReference,
    Mimetic,
    MimeticStateSpace,
    MlpMean,
    Positions,
    Scrambled,
    SeparableSolver,
    Skipless,
    SparePositions,
    SpatialFilters,
    StructuredInitError,
    SvdSolver,
    TruncatedNormal,
    WeightSelection,
    initialize,
    register_attention,
    register_mlp,
)
from structured_init.analysis import capture, capture_attention, register_capture, summarize, weight_products
from structured_init.attention.impulse.solvers import ImpulseSolver

PIXELS = torch.zeros(2, 3, 8, 8)


def constructors():
    """Every public class with arguments of its own: initializers, and the solvers of one."""
    public = [getattr(structured_init, name) for name in structured_init.__all__]
    classes = [each for each in public if inspect.isclass(each) and issubclass(each, (Initializer, ImpulseSolver))]
    return [each for each in classes if not inspect.isabstract(each)]


NUMBERS = [
    (cls, name, "list" in parameter.annotation)
    for cls in constructors()
    for name, parameter in inspect.signature(cls).parameters.items()
    if re.search(r"\b(float|int)\b", str(parameter.annotation))
]


def test_numbers_are_looked_for_in_all_of_them():
    assert len(NUMBERS) > 40
    assert {cls.__name__ for cls, *_ in NUMBERS} >= {"Mimetic", "Positions", "SvdSolver", "MlpMean", "SpatialFilters"}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "much"])
@pytest.mark.parametrize(("cls", "name", "listed"), NUMBERS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_no_argument_takes_what_is_no_finite_number(as_installed, cls, name, listed, value):
    with pytest.raises(StructuredInitError, match=rf"^{cls.__name__}: {name} must ") as caught:
        cls(**{name: [value] if listed else value})
    assert "\n" not in str(caught.value)
    assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Positions(gain=-1), "Positions: gain must not be negative, got -1"),
        (lambda: Positions(std=0), "Positions: std must be positive, got 0"),
        (lambda: Positions(temperature=-10.0), "Positions: temperature must be positive, got -10.0"),
        (lambda: Mimetic(qk_alpha=-0.7), "Mimetic: qk_alpha must not be negative, got -0.7"),
        (lambda: Mimetic(qk_alpha=1e300), "Mimetic: qk_alpha must be a number that float32 can hold, got 1e+300"),
        (lambda: Mimetic(vo_alpha=-0.4), "Mimetic: vo_alpha must not be negative, got -0.4"),
        (lambda: Mimetic(vo_alpha=None), "Mimetic: vo_alpha must be a number, got None"),
        (lambda: Mimetic(query_key=False, value_output=False, positions="keep"),
         "Mimetic: query_key and value_output are off and positions are kept: there is nothing to write"),
        (lambda: Skipless(qk_alpha=-2.0), "Skipless: qk_alpha must not be negative, got -2.0"),
        (lambda: Impulse(kernel_size=3.0), "Impulse: kernel_size must be a whole number, got 3.0"),
        (lambda: Impulse(kernel_size=-3), "Impulse: kernel_size must be at least 1, got -3"),
        (lambda: Impulse(solver=3), "Impulse: solver must be adam, svd, separable or a solver, got 3"),
        (lambda: AdamSolver(iterations=0.5), "AdamSolver: iterations must be a whole number, got 0.5"),
        (lambda: SvdSolver(noise=-3.0), "SvdSolver: noise must not be negative, got -3.0"),
        (lambda: SvdSolver(gain=0), "SvdSolver: gain must be positive, got 0"),
        (lambda: SeparableSolver(gain=0.0), "SeparableSolver: gain must be positive, got 0.0"),
        (lambda: SparePositions(read=False, write=False),
         "SparePositions: read and write are both off: there is nothing to write"),
        (lambda: SpatialFilters(distinct=True), "SpatialFilters: distinct must be a whole number or null, got True"),
        (lambda: SpatialFilters(box_size=2.5), "SpatialFilters: box_size must be a whole number or null, got 2.5"),
        (lambda: SpatialFilters(energy=True), "SpatialFilters: energy must be 1/3, 1/f or a positive number, got True"),
        (lambda: FilterCovariance(covariances="."), "FilterCovariance: '.' is a folder: name the file in it"),
        (lambda: FilterCovariance(covariances=3),
         "FilterCovariance: covariances must be a path or the result of estimate_covariances, got 3"),
        (lambda: FilterCovariance(sigma0="wide"), "FilterCovariance: sigma0 must be a number, got 'wide'"),
        (lambda: MimeticStateSpace(match_alpha=-1.0), "MimeticStateSpace: match_alpha must not be negative, got -1.0"),
        (lambda: MimeticStateSpace(layers=[0.5]), "MimeticStateSpace: layers must be a whole number, got 0.5"),
        (lambda: MimeticStateSpace(layers=3), "MimeticStateSpace: layers must be a list such as [3] or null, got 3"),
        (lambda: MambaReference(num_layers=1.5), "MambaReference: num_layers must be a whole number or null, got 1.5"),
        (lambda: MlpMean(mean=None), "MlpMean: mean must be a number, got None"),
        (lambda: TruncatedNormal(std="big"), "TruncatedNormal: std must be a number, got 'big'"),
        (lambda: DeltaOrthogonal(gain=[1.0]), "DeltaOrthogonal: gain must be a number, got [1.0]"),
        (lambda: Compose(Mimetic()), "Compose takes a list, as in Compose([Mimetic()]), got Mimetic(…"),
        (lambda: Compose(["Mimetic"]), "Compose takes Initializer objects such as Mimetic(), got 'Mimetic'"),
        (lambda: Compose([Mimetic]), "Compose takes Initializer objects such as Mimetic(), got <class…"),
    ],
)  # fmt: skip
def test_an_argument_out_of_range_is_one_line(as_installed, build, message):
    with pytest.raises(StructuredInitError) as caught:
        build()
    said, (begin, *others) = str(caught.value), message.split("…")
    assert said.startswith(begin) if others else said == message


@pytest.mark.parametrize("where", [3, [None], {"blocks.0": True}])
@pytest.mark.parametrize("cls", [Mimetic, Conditioned, DeltaOrthogonal])
def test_a_where_that_is_no_pattern_is_one_line(as_installed, tiny_vit, cls, where):
    answer = r"^where is a name pattern, a list of them or a function of a site, got "
    with pytest.raises(StructuredInitError, match=answer + re.escape(repr(where))):
        initialize(tiny_vit(), Compose([KaimingUniform(), cls(where=where)]))


FLAGS = [
    (cls, name)
    for cls in constructors()
    for name, parameter in inspect.signature(cls).parameters.items()
    if re.search(r"\bbool\b", str(parameter.annotation))
]


@pytest.mark.parametrize(("cls", "name"), FLAGS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_flag_that_is_neither_true_nor_false_is_one_line(as_installed, cls, name):
    needed = {WeightSelection: {"teacher": "vit"}, MlpMean: {"mean": 0.1}, Scrambled: {"initializer": Mimetic()}}
    first = needed.get(cls, {})
    answer = rf"^{cls.__name__}: {name} must be true or false( or null)?, got 'no'$"
    with pytest.raises(StructuredInitError, match=answer):
        cls(**first, **{name: "no"})


class Own(nn.Module):
    """Attention that computes no softmax, so that only an adapter can read it."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, tokens):
        return self.q(tokens)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda vit: initialize("vit", Mimetic()), "initialize needs a model, an nn.Module, got str"),
        (lambda vit: initialize(dict(vit.state_dict()), Mimetic()), "initialize needs a model, an nn.Module, got dict"),
        (lambda vit: initialize(vit, [Mimetic(), Positions()]),
         "initialize takes one initializer, got several: Compose([…]) makes one of them"),
        (lambda vit: initialize(vit, Mimetic(), batch=[1.0]),
         "initialize: batch is a tensor of real inputs, a tuple or a dictionary of them, got list"),
        (lambda vit: WeightSelection(None),
         "WeightSelection: teacher is a path, a model name of timm, a module or a dictionary, got None"),
        (lambda vit: WeightSelection(vit, leave=3),
         "WeightSelection: leave is a name pattern or a list of them, got 3"),
        (lambda vit: register_attention(vit)(print),
         "a class is registered by itself or as 'package.module.Class', got an object of class VisionTransformer"),
        (lambda vit: register_mlp("MyMlp")(print),
         "a class is registered by itself or as 'package.module.Class', got 'MyMlp'"),
        (lambda vit: register_attention(Own, grid="4x4"),
         "register_attention: grid must be [rows, columns] or null, got '4x4'"),
        (lambda vit: register_attention(Own, grid=(4,)),
         "register_attention: grid must be [rows, columns] or null, got (4,)"),
        (lambda vit: register_attention(Own, grid=(4, 0)),
         "register_attention: grid's columns must be at least 1, got 0"),
        (lambda vit: register_attention(Own, prefix_tokens=-1),
         "register_attention: prefix_tokens must be at least 0, got -1"),
        (lambda vit: capture_attention("vit", PIXELS), "capture_attention needs a model, an nn.Module, got str"),
        (lambda vit: capture_attention(vit, PIXELS, layers="blocks.0.attn"),
         "capture_attention: layers is a list of names or numbers, as in ['*.0.attn'], got 'blocks.0.attn'"),
        (lambda vit: capture_attention(vit, PIXELS, layers=[]),
         "capture_attention: layers is empty and selects nothing; null selects all"),
        (lambda vit: capture_attention(vit, PIXELS, max_samples=0),
         "capture_attention: max_samples must be at least 1 or null, got 0"),
        (lambda vit: capture_attention(vit, PIXELS, max_samples=1.5),
         "capture_attention: max_samples must be a whole number or null, got 1.5"),
        (lambda vit: capture_attention(vit, PIXELS, max_megabytes=math.nan),
         "capture_attention: max_megabytes must be a finite number, got nan"),
        (lambda vit: summarize(torch.ones(2, 4, 4)),
         "summarize takes maps (batch, heads, queries, keys), got shape (2, 4, 4): add the missing axes"),
        (lambda vit: weight_products(vit),
         "weight_products takes a site, as attention_sites(model) gives them, got VisionTransformer"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_line(as_installed, tiny_vit, build, message):
    with pytest.raises(StructuredInitError) as caught:
        build(tiny_vit())
    assert str(caught.value) == message


def test_an_adapter_that_returns_no_maps_is_one_line(as_installed, monkeypatch):
    monkeypatch.setattr(capture._ADAPTERS, "_describe", {})
    register_capture(Own)(lambda module, args, kwargs, output: None)
    message = "the capture registered for Own returned NoneType: it must return maps (batch, heads, queries, keys)"
    with pytest.raises(StructuredInitError, match=re.escape(message)):
        capture_attention(nn.Sequential(Own()), torch.zeros(2, 4, 8))
