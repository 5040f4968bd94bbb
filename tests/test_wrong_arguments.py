"""A mistyped argument of anything public that one builds is answered with the nearest right one."""

from __future__ import annotations

import inspect

import pytest

import callbacks
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


def test_a_mistyped_argument_is_answered_with_the_nearest():
    assert len(BUILT) > 40
    for cls in BUILT:
        needed = {
            name: None
            for name, each in inspect.signature(cls.__init__).parameters.items()
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and name != "self"
        }
        right = max(argument_names(cls), key=len)
        wrong = right[:-2] + right[-1] + right[-2]
        said = f"^{cls.__name__} has no argument '{wrong}': did you mean '{right}'"
        with pytest.raises(StructuredInitError, match=said):
            cls(**{**needed, wrong: 1})


def test_a_constructor_that_takes_what_its_base_does_not_is_left_alone():
    class Own(callbacks.FilterCallback):
        def __init__(self, **given):
            self.colour = given.pop("colour")
            super().__init__(**given)

    assert Own(colour="red", figures=False).colour == "red"
    with pytest.raises(StructuredInitError, match="Own has no argument 'figure': did you mean 'figures'"):
        Own(colour="red", figure=False)


def test_public_functions_answer_mistyped_options():
    with pytest.raises(StructuredInitError, match=r"^initialize has no argument 'sead': did you mean 'seed'"):
        structured_init.initialize(sead=1)
    with pytest.raises(StructuredInitError, match=r"^summarize has no argument 'nosuch': "):
        structured_init.analysis.summarize(nosuch=1)


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
