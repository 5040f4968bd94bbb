"""Nothing that looks at a training ends it; a mistake that shows before it does."""

import json

import pytest

from callbacks import AttentionMapCallback, RepresentationCallback
from structured_init.util.errors import StructuredInitError

WHAT = {"attention": AttentionMapCallback, "representations": RepresentationCallback}


@pytest.fixture
def breaking(monkeypatch):
    """Let a callback fail at one moment."""

    def break_it(what, moment, error):
        whole = WHAT[what].write

        def broken(self, phase, *rest):
            if phase == moment:
                raise error
            return whole(self, phase, *rest)

        monkeypatch.setattr(WHAT[what], "write", broken)

    return break_it


SMALL = ["--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1"]
SEEN = ["--trainer.callbacks+=RepresentationCallback", "--attention.every_n_epochs=1"]


@pytest.mark.parametrize(
    ("what", "moment", "error"),
    [
        ("attention", "before", RuntimeError("linalg.svd:\n no convergence")),
        ("attention", "after", StructuredInitError("linalg.svd:\n no convergence")),
        ("representations", "after", RuntimeError("linalg.svd:\n no convergence")),
    ],
)
def test_what_cannot_be_looked_at_is_a_warning_and_an_entry(cli, folder, breaking, what, moment, error):
    breaking(what, moment, error)
    kind = "" if isinstance(error, StructuredInitError) else "RuntimeError: "
    with pytest.warns(UserWarning, match=f"{what}: nothing was recorded at '{moment}': {kind}linalg.svd: no"):
        run = cli("fit", *SMALL, *SEEN)
    assert run.trainer.state.finished
    (missing,) = folder.rglob("missing.json")
    assert json.loads(missing.read_text()) == {what: {moment: f"{kind}linalg.svd: no convergence"}}


def test_an_expected_mistake_before_training_is_an_error(cli, folder, breaking, complaint):
    breaking("representations", "before", StructuredInitError("the disk is full"))
    assert complaint(cli, "fit", *SMALL, *SEEN) == "the disk is full"
