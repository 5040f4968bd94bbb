"""Every callback answers an argument that cannot be right in one line that names it."""

import pytest
from lightning.pytorch import LightningModule, Trainer

from callbacks import AttentionMapCallback, InitCallback, RepresentationCallback
from structured_init import Default, KaimingUniform, StructuredInitError, TruncatedNormal


@pytest.mark.parametrize(
    ("callback", "arguments", "message"),
    [
        (InitCallback, {"initializer": "mimetic"}, "such as Mimetic() or preset('mimetic'), got 'mimetic'"),
        (InitCallback, {"initializer": Default(), "seed": -1}, "seed must be a whole number from 0 or null, got -1"),
        (InitCallback, {"initializer": Default}, f"or preset('mimetic'), got {Default!r}"),
        (InitCallback, {"initializer": Default(), "seed": "a"}, "seed must be a whole number from 0 or null, got 'a'"),
        (InitCallback, {"initializer": Default(), "samples": 0}, "samples must be a whole number from 1, got 0"),
        (InitCallback, {"initializer": Default(), "when": "later"}, "when must be fit_start or setup, got 'later'"),
        (AttentionMapCallback, {"samples": 0}, "samples must be a whole number from 1, got 0"),
        (AttentionMapCallback, {"every_n_epochs": 0}, "every_n_epochs must be a whole number from 1 or null, got 0"),
        (AttentionMapCallback, {"grid": 5}, "grid must be [rows, columns] or null, got 5"),
        (AttentionMapCallback, {"grid": [0, 4]}, "grid's rows must be a whole number from 1, got 0"),
        (AttentionMapCallback, {"layers": "blocks.0.attn"}, "layers is a list of names or numbers"),
        (AttentionMapCallback, {"on_missing": "ignore"}, "on_missing must be error or skip, got 'ignore'"),
        (RepresentationCallback, {"samples": 8}, "batch_size must be from 4 to samples (8), got 64"),
    ],
)
def test_a_wrong_argument_is_one_line(as_installed, callback, arguments, message):
    with pytest.raises(StructuredInitError) as caught:
        callback(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert callback.__name__ in str(caught.value)


def test_two_callbacks_that_initialize_one_model_are_refused_and_one_of_them_may_write_nothing():
    given = [InitCallback(KaimingUniform()), InitCallback(TruncatedNormal())]
    trainer = Trainer(callbacks=given, logger=False, enable_checkpointing=False, accelerator="cpu", barebones=True)
    with pytest.raises(StructuredInitError, match="two InitCallbacks initialize one model"):
        given[0].setup(trainer, LightningModule(), "fit")
    trainer.callbacks[1].initializer = Default()
    given[0].setup(trainer, LightningModule(), "fit")
