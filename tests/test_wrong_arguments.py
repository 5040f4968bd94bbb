"""A mistyped argument of anything public that one builds is answered with the nearest right one."""

from __future__ import annotations

import inspect

import pytest

import callbacks
import comparison.report
import lightning_modules
import lightning_modules.data
import structured_init
import structured_init.analysis
from structured_init import Initializer, StructuredInitError
from structured_init.arguments import argument_names

ROOMS = (callbacks, lightning_modules, lightning_modules.data)
TORCHS = {"EpochSampler", "ResumableLoader", "TorchvisionAugmentation"}  # of classes that others have made
PUBLIC = [getattr(room, name) for room in ROOMS for name in room.__all__ if name not in TORCHS]
BUILT = [
    each
    for each in dict.fromkeys([*PUBLIC, *(getattr(structured_init, name) for name in structured_init.__all__)])
    if inspect.isclass(each)
    and (each in PUBLIC or issubclass(each, Initializer))
    and not inspect.isabstract(each)
    and any(True for _ in argument_names(each))
]


@pytest.mark.parametrize("cls", BUILT, ids=lambda cls: cls.__name__)
def test_a_mistyped_argument_is_answered_with_the_nearest(cls):
    needed = {
        name: None
        for name, each in inspect.signature(cls.__init__).parameters.items()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and name != "self"
    }
    right = max(argument_names(cls), key=len)
    wrong = right[:-2] + right[-1] + right[-2]
    with pytest.raises(StructuredInitError, match=f"^{cls.__name__} has no argument '{wrong}': did you mean '{right}'"):
        cls(**{**needed, wrong: 1})


def test_a_constructor_that_takes_what_its_base_does_not_is_left_alone():
    class Own(callbacks.FilterCallback):
        def __init__(self, **given):
            self.colour = given.pop("colour")
            super().__init__(**given)

    assert Own(colour="red", figures=False).colour == "red"
    with pytest.raises(StructuredInitError, match="Own has no argument 'figure': did you mean 'figures'"):
        Own(colour="red", figure=False)


@pytest.mark.parametrize("room", [structured_init, structured_init.analysis, comparison.report])
def test_public_functions_answer_mistyped_options(room):
    functions = {
        name: inspect.signature(each).parameters
        for name in room.__all__
        if inspect.isfunction(each := getattr(room, name))
    }
    with_options = {
        name: takes
        for name, takes in functions.items()
        if any(each.default is not each.empty for each in takes.values())
        and not any(each.kind is each.VAR_KEYWORD for each in takes.values())
    }
    assert with_options
    for name in with_options:
        with pytest.raises(StructuredInitError, match=f"^{name} has no argument 'nosuch': "):
            getattr(room, name)(nosuch=1)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("from structured_init import Mimetick", "structured_init has no 'Mimetick': did you mean 'Mimetic'"),
        ("from callbacks import InitCallbak", "callbacks has no 'InitCallbak': did you mean 'InitCallback'"),
        ("from lightning_modules import ImageClasifier", "lightning_modules has no 'ImageClasifier': did you mean"),
    ],
)
def test_a_mistyped_import_is_answered_with_the_nearest(line, answer):
    with pytest.raises(ImportError, match=answer):
        exec(line)
    assert not hasattr(structured_init, "Mimetick")
