"""What InitCallback promises on one device; `test_init_distributed.py` has two."""

from __future__ import annotations

import copy
import json
import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateFinder
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.tuner import Tuner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training import quiet_trainer

from callbacks import InitCallback
from structured_init import (
    Compose,
    Default,
    Initializer,
    KaimingUniform,
    Mimetic,
    Positions,
    StructuredInitError,
    initialize,
)

SEED = 3
REPORT = "init_report.json"


class Constant(Initializer):
    """Fills every parameter and buffer: a start that is recognized at a glance."""

    def __init__(self, value=2.0):
        self.value = value

    def plan(self, weights, *, rng, batch=None):
        for tensor in [*weights.model.parameters(), *weights.model.buffers()]:
            weights.write(tensor, torch.full(tensor.shape, self.value), "Constant")


class FailsHalfWay(Constant):
    def plan(self, weights, *, rng, batch=None):
        for parameter in weights.each(list(weights.model.parameters())):
            if parameter.ndim > 1:
                raise StructuredInitError("cannot go on")
            weights.write(parameter, torch.full(parameter.shape, self.value), "FailsHalfWay")


class Classifier(pl.LightningModule):
    """A small network that notes what it sees: the batches, its dropout masks, the weights of each first step."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.dropout = nn.Dropout(0.5)
        self.network = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), self.dropout, nn.Linear(6, 3))
        self.register_buffer("shift", torch.zeros(3))
        self.lr, self.batch_size = 0.1, 2
        self.batches, self.masks = [], []
        self.trained_on, self.validated = [], []

    def training_step(self, batch, batch_idx):
        images, labels = batch
        self.trained_on.append(state(self))
        self.batches.append(images.clone())
        self.masks.append(self.dropout(torch.ones(6)))
        return nn.functional.cross_entropy(self.network(images) + self.shift, labels)

    def validation_step(self, batch, batch_idx):
        self.validated.append(state(self))

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=self.lr, momentum=0.9)

    def train_dataloader(self, shuffle=True):
        images = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(images, torch.arange(8) % 3), batch_size=self.batch_size, shuffle=shuffle)

    def val_dataloader(self):
        return self.train_dataloader(shuffle=False)


class VisionClassifier(Classifier):
    """The same around a vision transformer, which is built in the constructor or in ``configure_model``."""

    def __init__(self, build, late=False):
        super().__init__()
        self.build = build
        self.network = None if late else build()

    def configure_model(self):
        self.network = self.network or self.build()

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.network(batch[0])

    def train_dataloader(self, shuffle=True):
        return DataLoader(TensorDataset(torch.randn(4, 3, 8, 8), torch.arange(4)), batch_size=2, shuffle=shuffle)


class Watch(pl.Callback):
    """Notes the weights when training starts and the parameters that the optimizer holds at the start of the fit."""

    def on_fit_start(self, trainer, pl_module):
        self.optimized = [id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]]

    def on_train_start(self, trainer, pl_module):
        self.start = state(pl_module)


def state(model):
    """Copy every parameter and buffer."""
    return {name: t.detach().clone() for name, t in [*model.named_parameters(), *model.named_buffers()]}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def planned(model, initializer, seed=SEED):
    """Return the state of a copy of ``model`` after a plain ``initialize``."""
    model = copy.deepcopy(model)
    initialize(model, initializer, seed=seed)
    return state(model)


def constant(model, value=2.0):
    return {name: torch.full_like(t, value) for name, t in state(model).items()}


@pytest.fixture
def trainer(tmp_path):
    """A factory of quiet trainers that log nothing and write into the test's folder."""

    def build(*callbacks, epochs=1, **arguments):
        own = {"default_root_dir": tmp_path, "num_sanity_val_steps": 1, "max_epochs": epochs, **arguments}
        return quiet_trainer(callbacks=list(callbacks), **own)

    return build


@pytest.fixture
def checkpoint(trainer, tmp_path):
    """A factory of checkpoints after one epoch, made with the given callbacks; gives the path and the weights."""

    def make(*callbacks, **saving):
        model = Classifier(seed=1)
        first = trainer(*callbacks, default_root_dir=tmp_path / "first")
        first.fit(model)
        first.save_checkpoint(tmp_path / "first.ckpt", **saving)
        return tmp_path / "first.ckpt", state(model)

    return make


WHENS = pytest.mark.parametrize("when", ["fit_start", "setup"])


# Written in place


@WHENS
def test_training_starts_from_what_a_plain_call_of_initialize_gives(trainer, when):
    model, watch = Classifier(), Watch()
    expected, parameters = planned(model, KaimingUniform()), [id(p) for p in model.parameters()]
    assert not same(expected, state(model))
    trainer(InitCallback(KaimingUniform(), seed=SEED, when=when), watch).fit(model)
    assert same(watch.start, expected)
    assert [id(p) for p in model.parameters()] == parameters == watch.optimized
    after = state(model)
    assert all(not torch.equal(watch.start[name], after[name]) for name, _ in model.named_parameters())


def test_log_says_once_what_was_initialized(trainer, caplog):
    """The first line of the report; a second fit of the same model initializes nothing and says nothing."""
    model, callback = Classifier(), InitCallback(Constant(), seed=SEED)
    with caplog.at_level("INFO", logger="lightning.pytorch"):  # other test files make it silent for their process
        trainer(callback).fit(model)
        trainer(callback).fit(model)
    assert [line for line in caplog.messages if line == callback.report.summary()] == [callback.report.summary()]
    assert "set 7 of 7 tensors" in callback.report.summary()


def test_seed_is_that_of_seed_everything_unless_it_is_given(trainer):
    model, watch = Classifier(), Watch()
    expected = planned(model, KaimingUniform(), seed=11)
    pl.seed_everything(11, verbose=False)
    trainer(InitCallback(KaimingUniform()), watch).fit(model)
    assert same(watch.start, expected)


def test_failure_half_way_leaves_the_model_as_it_was_and_free_to_be_started(trainer):
    model = Classifier()
    before = state(model)
    with pytest.raises(StructuredInitError, match="cannot go on"):
        trainer(InitCallback(FailsHalfWay())).fit(model)
    assert same(state(model), before)
    watch = Watch()
    trainer(InitCallback(Constant()), watch).fit(model)
    assert same(watch.start, constant(model))


def test_buffer_that_checkpoints_do_not_hold_is_refused(trainer):
    model = Classifier()
    model.register_buffer("shift", model.shift, persistent=False)
    with pytest.raises(StructuredInitError, match=r"^'shift' is not part of a checkpoint.* register_buffer\(.*\)$"):
        trainer(InitCallback(Constant())).fit(model)
    model.register_buffer("shift", model.shift, persistent=True)  # the way out
    watch = Watch()
    trainer(InitCallback(Constant()), watch).fit(model)
    assert same(watch.start, constant(model))


@pytest.mark.parametrize("whole", [True, False], ids=["module", "submodule"])
def test_compiled_model_is_started_under_plain_names(trainer, whole):
    model, callback, watch = Classifier(), InitCallback(KaimingUniform(), seed=SEED), Watch()
    expected = planned(model, KaimingUniform())
    if not whole:
        model.network = torch.compile(model.network, backend="eager")
    trainer(callback, watch).fit(torch.compile(model, backend="eager") if whole else model)
    assert same({name.replace("_orig_mod.", ""): t for name, t in watch.start.items()}, expected)
    assert {name for entry in callback.report.entries for name in entry.names} == {n for n in expected if n != "shift"}


# Paired comparisons


def test_global_random_states_are_the_same_before_and_after(trainer, as_installed):  # beartype draws random numbers
    states = []

    class Probe(pl.Callback):
        def on_fit_start(self, trainer, pl_module):
            states.append((torch.get_rng_state().tolist(), np.random.get_state()[1:3], random.getstate()))

    class Other(Probe):
        pass

    trainer(Probe(), InitCallback(KaimingUniform()), Other()).fit(Classifier())
    (torch_before, numpy_before, python_before), (torch_after, numpy_after, python_after) = states
    assert torch_before == torch_after
    assert (numpy_before[0] == numpy_after[0]).all()
    assert numpy_before[1] == numpy_after[1]
    assert python_before == python_after


@WHENS
def test_runs_that_differ_in_their_start_see_the_same_batches_and_dropout(trainer, when):
    models = []
    for initializer in (Default(), KaimingUniform()):
        model = Classifier()
        pl.seed_everything(5, verbose=False)
        trainer(InitCallback(initializer, when=when), epochs=2).fit(model)
        models.append(model)
    first, second = models
    assert not same(first.trained_on[0], second.trained_on[0])
    assert len(first.batches) == 8
    assert len({tuple(batch.flatten().tolist()) for batch in first.batches}) > 4  # the two epochs differ in order
    assert all(torch.equal(a, b) for a, b in zip(first.batches, second.batches, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first.masks, second.masks, strict=True))


# Never over what was there


@pytest.mark.parametrize(("when", "weights_only"), [("fit_start", None), ("setup", True)])
def test_resumed_run_keeps_its_weights_and_its_report(trainer, checkpoint, tmp_path, when, weights_only):
    path, weights = checkpoint(InitCallback(KaimingUniform(), seed=SEED, when=when))
    model, callback, watch = Classifier(seed=2), InitCallback(KaimingUniform(), seed=SEED, when=when), Watch()
    trainer(callback, watch, epochs=2).fit(model, ckpt_path=path, weights_only=weights_only)
    assert same(watch.start, weights)
    assert callback.report is None
    assert (tmp_path / REPORT).read_text() == (tmp_path / "first" / REPORT).read_text()


def test_checkpoint_made_without_the_callback_keeps_its_weights_in_every_fit(trainer, checkpoint, tmp_path):
    path, weights = checkpoint()
    model, watch, callback = Classifier(seed=2), Watch(), InitCallback(Constant(), when="setup")
    trainer(callback, watch, epochs=2).fit(model, ckpt_path=path)
    assert same(watch.start, weights)
    assert not (tmp_path / REPORT).exists()
    trained = state(model)
    trainer(callback, watch).fit(model)
    assert same(watch.start, trained)


@pytest.mark.parametrize("weights_alone", [False, True])
def test_weights_that_validation_loaded_are_kept(trainer, checkpoint, weights_alone):
    path, weights = checkpoint(weights_only=weights_alone)
    model, watch = Classifier(seed=2), Watch()
    fitting = trainer(InitCallback(Constant()), watch)
    fitting.validate(model, ckpt_path=path, verbose=False)
    fitting.fit(model)
    assert same(watch.start, weights)


def test_validation_without_a_checkpoint_does_not_count_as_a_start(trainer):
    model, watch = Classifier(), Watch()
    fitting = trainer(InitCallback(Constant()), watch)
    fitting.validate(model, verbose=False)
    fitting.fit(model)
    assert same(watch.start, constant(model))


def test_overwriting_weights_that_look_trained_is_warned_of(trainer, checkpoint):
    path, _ = checkpoint()
    model = Classifier(seed=2)
    model.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    with pytest.warns(UserWarning, match=r"the weights look trained \('network.0.weight'"):
        trainer(InitCallback(KaimingUniform())).fit(model)


@pytest.mark.parametrize(
    ("again", "when"),
    [("same trainer", "fit_start"), ("new trainer", "setup"), ("new callback", "fit_start"), ("deepcopy", "setup")],
)
def test_second_fit_goes_on_from_the_trained_weights(trainer, tmp_path, when, again):
    model, callback, watch = Classifier(), InitCallback(Constant(), when=when), Watch()
    fitting = trainer(callback, watch)
    fitting.fit(model)
    trained = state(model)
    assert not same(trained, watch.start)
    fitting.fit_loop.max_epochs = 2
    if again != "same trainer":
        callback = InitCallback(Constant(), when=when) if again == "new callback" else callback
        fitting = trainer(callback, watch, default_root_dir=tmp_path / "second")
    fitting.fit(copy.deepcopy(model) if again == "deepcopy" else model)
    assert same(watch.start, trained)
    assert (tmp_path / ("" if again == "same trainer" else "second") / REPORT).exists()


def test_one_callback_starts_every_new_model(trainer, tmp_path):
    callback = InitCallback(KaimingUniform(), seed=SEED)
    for seed in (0, 1):
        model, watch = Classifier(seed), Watch()
        expected = planned(model, KaimingUniform())
        fitting = trainer(callback, watch)
        fitting.fit(model)
        fitting.save_checkpoint(tmp_path / "model.ckpt")
        assert same(watch.start, expected)
        assert callback.report.to_dict() == json.loads((tmp_path / REPORT).read_text())
        assert callback.report.to_dict() == account(tmp_path / "model.ckpt")["report"]


def test_another_start_for_a_started_model_is_warned_of_and_not_applied(trainer, tmp_path):
    model, watch = Classifier(), Watch()
    trainer(InitCallback(Constant(2.0))).fit(model)
    trained = state(model)
    with pytest.warns(UserWarning, match=r"already initialized with Constant\(value=2.0\) and keeps it"):
        trainer(InitCallback(Constant(3.0)), watch).fit(model)
    assert same(watch.start, trained)
    assert json.loads((tmp_path / REPORT).read_text())["initializer"] == "Constant(value=2.0)"


def test_resuming_with_another_start_is_warned_of_and_not_applied(trainer, checkpoint):
    path, weights = checkpoint(InitCallback(KaimingUniform()))
    watch = Watch()
    with pytest.warns(UserWarning, match=r"already initialized with KaimingUniform\(\) and keeps it"):
        trainer(InitCallback(Constant()), watch, epochs=2).fit(Classifier(), ckpt_path=path)
    assert same(watch.start, weights)


# Weight averaging


@pytest.mark.parametrize(("when", "averaging_first"), [("fit_start", True), ("setup", False)])
def test_averaged_weights_that_start_late_are_validated_from_the_initialized_ones(trainer, when, averaging_first):
    model, watch = Classifier(), Watch()
    callbacks = [InitCallback(Constant(), when=when), EMAWeightAveraging(decay=0.5, update_starting_at_step=1000)]
    trainer(*(reversed(callbacks) if averaging_first else callbacks), watch).fit(model)
    assert same(watch.start, constant(model))
    sanity_check, *validations = model.validated
    assert same(sanity_check, constant(model))
    assert len(validations) == 4
    assert all(same(seen, constant(model)) for seen in validations)
    assert not same(model.trained_on[-1], constant(model))  # while the model itself was trained


# Finders and strategies that would come too late


def finder(find):
    """Fit with a finder among the callbacks."""
    return lambda trainer, model, *callbacks: trainer(find(), *callbacks).fit(model)


def tuner(tune):
    """Tune before the fit."""

    def run(trainer, model, *callbacks):
        fitting = trainer(*callbacks)
        tune(Tuner(fitting), model)
        fitting.fit(model)

    return run


def rates():
    return LearningRateFinder(num_training_steps=4, early_stop_threshold=None)


EARLY = pytest.mark.parametrize(
    ("run", "name"),
    [
        (finder(rates), "LearningRateFinder"),
        (tuner(lambda by, model: by.scale_batch_size(model, max_trials=1)), "BatchSizeFinder"),
    ],
    ids=["rate", "tuned batch size"],
)


@EARLY
def test_what_looks_before_the_fit_is_refused_with_the_way_out(trainer, run, name):
    model = Classifier()
    before = state(model)
    with pytest.raises(StructuredInitError) as error:
        run(trainer, model, InitCallback(Constant()))
    assert str(error.value) == (
        f"{name} runs before on_fit_start and would measure other weights: use InitCallback(..., when='setup')"
    )
    assert same(state(model), before)
    assert not model.trained_on


@EARLY
def test_what_looks_before_the_fit_sees_the_weights_that_are_set_in_setup(trainer, tmp_path, run, name):
    model, watch = Classifier(), Watch()
    run(trainer, model, InitCallback(Constant(), when="setup"), watch)
    assert len(model.trained_on) > 4  # its steps and an epoch
    assert same(model.trained_on[0], constant(model))
    assert same(watch.start, constant(model))
    assert (tmp_path / REPORT).exists()


def test_default_writes_nothing_and_refuses_nothing(trainer):
    model = Classifier()
    before = state(model)
    trainer(rates(), InitCallback(Default())).fit(model)
    assert same(model.trained_on[0], before)


class DeepSpeedStrategy(SingleDeviceStrategy):
    """Has the name that is asked for; the real one needs its library."""


class FSDPStrategy(SingleDeviceStrategy):
    """Likewise; the real one needs GPUs."""


class Derived(FSDPStrategy):
    """A user's own variant."""


@pytest.mark.parametrize("strategy", [DeepSpeedStrategy, Derived])
def test_strategy_that_copied_the_weights_is_refused_with_the_way_out(trainer, strategy):
    name = "DeepSpeed" if strategy is DeepSpeedStrategy else "FSDP1"
    with pytest.raises(StructuredInitError, match=rf"^{name} has .* before on_fit_start: use .*when='setup'\)$"):
        trainer(InitCallback(Constant()), strategy=strategy("cpu")).fit(Classifier())
    model, watch = Classifier(), Watch()
    trainer(InitCallback(Constant(), when="setup"), watch, strategy=strategy("cpu")).fit(model)
    assert same(watch.start, constant(model))


def test_setup_needs_a_model_that_is_already_built(trainer, tiny_vit):
    with pytest.raises(StructuredInitError, match="needs a model built in its constructor"):
        trainer(InitCallback(Positions(), when="setup")).fit(VisionClassifier(tiny_vit, late=True))


# Freezing


@pytest.mark.parametrize("late", [False, True], ids=["constructor", "configure_model"])
def test_frozen_positions_keep_their_values_also_after_a_resume(trainer, tiny_vit, tmp_path, late):
    initializer = Compose([KaimingUniform(), Positions(trainable=False)])
    model, watch = VisionClassifier(tiny_vit, late), Watch()
    expected = planned(VisionClassifier(tiny_vit), initializer)["network.pos_embed"]
    fitting = trainer(InitCallback(initializer, seed=SEED), watch)
    fitting.fit(model)
    fitting.save_checkpoint(tmp_path / "frozen.ckpt")
    assert not model.network.pos_embed.requires_grad
    assert torch.equal(model.network.pos_embed, expected)
    assert not torch.equal(model.network.blocks[0].attn.qkv.weight, watch.start["network.blocks.0.attn.qkv.weight"])
    assert (id(model.network.pos_embed) in watch.optimized) == late  # what is frozen in setup is not optimized at all

    resumed = VisionClassifier(tiny_vit, late)
    trainer(InitCallback(initializer, seed=SEED), watch, epochs=2).fit(resumed, ckpt_path=tmp_path / "frozen.ckpt")
    assert not resumed.network.pos_embed.requires_grad
    assert torch.equal(resumed.network.pos_embed, expected)
    assert not same(state(resumed), watch.start)


# The report


def account(path):
    """Read from a checkpoint, without running code, how its weights came about."""
    return torch.load(path, weights_only=True)["_structured_init"]


def test_report_is_in_the_log_folder_the_hyperparameters_and_the_checkpoint(trainer, tmp_path):
    model, callback, logger = Classifier(), InitCallback(KaimingUniform(), seed=SEED), CSVLogger(tmp_path, name="logs")
    fitting = trainer(callback, logger=logger)
    fitting.fit(model)
    fitting.save_checkpoint(tmp_path / "model.ckpt")
    report = json.loads((tmp_path / "logs" / "version_0" / REPORT).read_text())
    assert report == callback.report.to_dict()
    headline = {"initializer": "KaimingUniform()", "seed": SEED, "when": "fit_start", "tensors_set": 4}
    assert yaml.safe_load((tmp_path / "logs" / "version_0" / "hparams.yaml").read_text())["init"] == headline
    assert account(tmp_path / "model.ckpt") == {**headline, "report": report}


def test_fast_dev_run_writes_nothing(trainer, tmp_path):
    model, watch = Classifier(), Watch()
    trainer(InitCallback(Constant()), watch, fast_dev_run=True).fit(model)
    assert same(watch.start, constant(model))
    assert not list(tmp_path.iterdir())


def test_unwritable_log_folder_is_one_line_before_the_first_step(trainer, tmp_path):
    (tmp_path / "file").touch()
    model = Classifier()
    with pytest.raises(StructuredInitError) as error:
        trainer(InitCallback(Constant()), default_root_dir=tmp_path / "file" / "logs").fit(model)
    assert str(error.value) == f"cannot write '{tmp_path / 'file' / 'logs' / REPORT}': Not a directory"
    assert not model.trained_on


def test_strict_refuses_to_train_with_attention_that_was_left_alone(trainer):
    class Unheard(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(4, 4)

    def model():
        module = Classifier()
        module.known, module.self_attn = nn.MultiheadAttention(4, 2), Unheard()
        return module

    start = Mimetic(positions="keep")
    with pytest.raises(StructuredInitError, match=r"^Mimetic, strict: 1 of 2 attention layers left alone: self_attn"):
        trainer(InitCallback(start, strict=True)).fit(model())
    callback = InitCallback(start)
    trainer(callback).fit(model())
    assert callback.report.left == ["self_attn"]
