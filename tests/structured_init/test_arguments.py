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
    DeltaOrthogonal,
    FilterCovariance,
    Impulse,
    Induction,
    Initializer,
    KaimingUniform,
    MambaReference,
    Mimetic,
    MimeticStateSpace,
    PatchWhitening,
    Positions,
    PreviousToken,
    SamePositions,
    Scrambled,
    SeparableSolver,
    SpatialFilters,
    StructuredInitError,
    SvdSolver,
    TruncatedNormal,
    WeightSelection,
    attention_sites,
    freeze,
    initialize,
    preset,
    register_attention,
    required_attention_sites,
)
from structured_init.analysis import (
    capture_attention,
    summarize,
)
from structured_init.impulse import ImpulseSolver
from structured_init.inputs import GIVEN

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
    assert len(NUMBERS) > 30
    assert {cls.__name__ for cls, *_ in NUMBERS} >= {"Mimetic", "Positions", "SvdSolver", "FilterCovariance"}


@pytest.mark.parametrize(("cls", "name", "listed"), NUMBERS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_no_argument_takes_what_is_no_finite_number(as_installed, cls, name, listed):
    for value in (math.inf, -math.inf, math.nan, "much"):
        with pytest.raises(StructuredInitError, match=rf"^{cls.__name__}: {name} must ") as caught:
            cls(**{name: [value] if listed else value})
        assert "\n" not in str(caught.value)
        assert str(value) in str(caught.value)


# What a class is given → what it answers behind its name; … stands for the rest of a message.
OUT_OF_RANGE = {
    Positions: [
        ({"gain": -1}, "gain must be a finite number from 0, got -1"),
        ({"kind": "sinus"}, "kind must be sincos, gaussian or codes, got 'sinus'"),
        ({"kind": "codes", "kappa": 0.0}, "kappa must be a finite number above 0 or null, got 0.0"),
    ],
    Mimetic: [
        ({"qk_alpha": -0.7}, "qk_alpha must be a finite number from 0, got -0.7"),
        ({"qk_alpha": 1e300}, "qk_alpha must be a finite number from 0, got 1e+300"),
        ({"qk_sign": 0}, "qk_sign must be 1 or -1, got '0'"),
        ({"stream_share": 0.0}, "stream_share must be a finite number above 0, got 0.0"),
        ({"value_scale": "stream", "value_output": False},
         "value_scale 'stream' has nothing to scale: value_output is off"),
    ],
    TruncatedNormal: [
        ({"std": 0.0}, "std must be a finite number above 0, got 0.0"),
    ],
    Impulse: [
        ({"kernel_size": 4}, "kernel_size must be odd, such as 3 or 5, got 4"),
        ({"solver": "seperable"}, "solver must be adam, svd, separable or a solver, got 'seperable'"),
    ],
    AdamSolver: [
        ({"iterations": -1}, "iterations must be a whole number from 0, got -1"),
        ({"pseudo_input": "Q"}, "pseudo_input must be P, U, G, A, B or batch, got 'Q'"),
    ],
    SvdSolver: [
        ({"noise": -3.0}, "noise must be a finite number from 0, got -3.0"),
    ],
    SeparableSolver: [
        ({"gain": 0.0}, "gain must be a finite number above 0, got 0.0"),
    ],
    PreviousToken: [
        ({"offsets": [None]}, "every offset is null, so no head is written…"),
        ({"offsets": [1, 0]}, "offset 0 is the token itself, not an earlier one…"),
        ({"share": 1.0}, "share must be a number from 0 and below 1, got 1.0"),
        ({"context": 1}, "context must be a whole number from 2 or null, got 1"),
    ],
    Induction: [
        ({"share": 0.0}, "share must be a finite number above 0, got 0.0"),
        ({"context": 3}, "context must be a whole number from 4 or null, got 3"),
    ],
    SpatialFilters: [
        ({"filters": "sobel"}, "filters must be random, impulse, box, gaussian or host, got 'sobel'"),
    ],
    FilterCovariance: [
        ({"normalize": "energy"}, "normalize must be trace or None, got 'energy'"),
    ],
    DeltaOrthogonal: [
        ({"gain": 0.0}, "gain must be a finite number above 0, got 0.0"),
    ],
    PatchWhitening: [
        ({"exponent": 2.0}, "exponent must lie between 0 and 1, got 2.0"),
    ],
    MimeticStateSpace: [
        ({"layers": 3}, "layers must be a list such as [3] or null, got 3"),
    ],
    MambaReference: [
        ({"num_layers": 1.5}, "num_layers must be a whole number from 1 or null, got 1.5"),
    ],
    WeightSelection: [({"teacher": "vit", "missing": "skip"}, "missing must be error or keep, got 'skip'")],
    Scrambled: [
        ({"initializer": Positions()}, "Positions(…"),
    ],
    SamePositions: [
        ({"initializer": KaimingUniform()}, "KaimingUniform() writes only a baseline and positions…"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "arguments", "message"),
    [(cls, *row) for cls, rows in OUT_OF_RANGE.items() for row in rows],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_an_argument_out_of_range_is_one_line(as_installed, cls, arguments, message):
    with pytest.raises(StructuredInitError) as caught:
        cls(**arguments)
    said, (begin, *others) = str(caught.value), f"{cls.__name__}: {message}".split("…")
    assert said.startswith(begin) if others else said == begin
    assert "\n" not in said


@pytest.mark.parametrize(
    ("given", "said"), [(Mimetic(), "an object of class Mimetic"), (["Mimetic"], "['Mimetic']"), ([], "[]")]
)
def test_compose_takes_a_list_of_initializers(as_installed, given, said):
    with pytest.raises(StructuredInitError) as caught:
        Compose(given)
    begin = "Compose takes a list of Initializer objects, as in Compose([Mimetic()]), got "
    assert str(caught.value) == begin + said


@pytest.mark.parametrize("where", [3, [None], {"blocks.0": True}])
def test_a_where_that_is_no_pattern_is_one_line(as_installed, tiny_vit, where):
    answer = r"^where is a shell pattern of names, a list of them or a function, got "
    with pytest.raises(StructuredInitError, match=answer + re.escape(repr(where))):
        initialize(tiny_vit(), Compose([KaimingUniform(), Mimetic(where=where)]))


def test_a_function_that_selects_nothing_is_named_without_its_address(tiny_vit):
    with pytest.raises(StructuredInitError, match=r"^Mimetic: where=\S*<lambda> selects none of the 2"):
        initialize(tiny_vit(), Mimetic(where=lambda site: False))


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
        (lambda vit: initialize(vit, [Mimetic(), Positions()]),
         "initialize takes one Initializer such as Mimetic(), or Compose([…]) of several, got an object of class list"),
        (lambda vit: register_attention(vit)(print),
         "a class is registered by itself or as 'package.module.Class', got an object of class VisionTransformer"),
        (lambda vit: register_attention(Own, grid="4x4"),
         "register_attention: grid must be [rows, columns] or null, got '4x4'"),
        (lambda vit: capture_attention(vit, PIXELS, layers="blocks.0.attn"),
         "capture_attention: layers is a list of names or numbers, as in ['*.0.attn'], got 'blocks.0.attn'"),
        (lambda vit: capture_attention(vit, PIXELS, max_samples=0),
         "capture_attention: max_samples must be a whole number from 1 or null, got 0"),
        (lambda vit: summarize(torch.ones(2, 4, 4)),
         "attention maps are (batch, heads, queries, keys), got shape (2, 4, 4): add the missing axes"),
        (lambda vit: freeze(vit, "mimtic"), "there is no initialization 'mimtic': did you mean 'mimetic'?"),
        (lambda vit: setattr(attention_sites(vit)[0], "query", PIXELS[0]),
         "assignment: query of 'blocks.0.attn' has shape (2, 16, 8), got (3, 8, 8)"),
        (lambda vit: preset("mimetic_paper{vo_betta=0.2}"),
         "'mimetic_paper' takes no 'vo_betta': it is composed of KaimingUniform and Mimetic, give Compose([…])"),
        (lambda vit: required_attention_sites(nn.Linear(3, 3)),
         "required_attention_sites found no attention layer that it recognizes; the model has Linear: give `batch=…`, "
         "one or two samples, so that it is found by watching, or describe it with structured_init.register_attention"),
        (lambda vit: initialize(vit, Mimetic(), broadcast=True),
         "broadcast=True needs a process group: torch.distributed.init_process_group()"),
        (lambda vit: capture_attention(vit, PIXELS[:, :1]),
         "VisionTransformer fails on the batch: Given groups=1, weight of size [16, 3, 2, 2], expected "
         "input[2, 1, 8, 8] to have 3 channels, but got 1 channels instead (in 'patch_embed.proj')"),
        (lambda vit: initialize(nn.Sequential(vit), Mimetic(), batch=(PIXELS, PIXELS)),
         "Sequential fails on the batch: Sequential.forward() takes 2 positional arguments but 3 were given; "
         f"{GIVEN}"),
        (lambda vit: capture_attention(nn.Linear(3, 3), torch.zeros(2, 3)),
         "no attention map was captured: Linear has no attention module (it has Linear); if it does attend, say how to "
         "read them with structured_init.analysis.register_capture"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_line(as_installed, tiny_vit, build, message):
    with pytest.raises(StructuredInitError) as caught:
        build(tiny_vit())
    assert str(caught.value) == message
