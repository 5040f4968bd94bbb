"""When a callback looks at a model before and after training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from callbacks.before_after import BeforeAndAfter


class Watching(BeforeAndAfter):
    def __init__(self, enabled=True):
        super().__init__(enabled)
        self.seen = []

    def capture(self, phase, trainer, pl_module):
        self.seen.append(phase)
        return f"new {phase}"


def trained(callback, **trainer):
    trainer = SimpleNamespace(**{"ckpt_path": None, "global_step": 0, **trainer})
    callback.on_train_start(trainer, None)
    callback.on_train_end(trainer, None)
    return callback


def test_a_new_run_is_looked_at_twice():
    assert trained(Watching()).seen == ["before", "after"]


@pytest.mark.parametrize("step", [0, 5])
def test_a_resumed_run_keeps_what_it_saw_before_training(step):
    callback = Watching()
    callback.load_state_dict({"before": "old before"})
    assert trained(callback, ckpt_path="last.ckpt", global_step=step).seen == ["after"]
    assert callback.state_dict() == {"before": "old before"}


def test_the_same_callback_looks_again_at_the_next_model():
    callback = trained(trained(Watching()))
    assert callback.seen == ["before", "after"] * 2
    assert callback.before == "new before"


def test_a_model_that_was_trained_already_is_not_looked_at_as_if_it_were_new():
    assert trained(Watching(), global_step=5).seen == ["after"]


def test_what_is_not_enabled_does_not_look():
    assert trained(Watching(enabled=False)).seen == []
