"""Initializations that ask for training samples get them from InitCallback, and training is as without them."""

from __future__ import annotations

import json
import random
from collections import OrderedDict

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from strangers import WIDTH, Apart
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, random_split
from training import quiet_trainer
from transformers import BatchEncoding

from callbacks import ElapsedTime, InitCallback
from callbacks.samples import probe_batch
from lightning_modules import ImageClassifier
from lightning_modules.data import ImageData
from structured_init import (
    Initializer,
    KaimingUniform,
    Mimetic,
    StructuredInitError,
    initialize,
)
from structured_init.impulse import AdamSolver, Impulse

WHENS = pytest.mark.parametrize("when", ["fit_start", "setup"])


class Watch(Initializer):
    """Keeps the samples that it was given and writes nothing."""

    def __init__(self, needs_batch=True):
        self.needed = needs_batch
        self.seen = []

    @property
    def needs_batch(self):
        return self.needed

    def plan(self, weights, *, rng, batch=None):
        self.seen.append(batch)


class Numbers(Dataset):
    """Sample i of 40 is (i, i, i) plus what augmentation draws from every global random state."""

    def __init__(self, first=0, augmented=False):
        self.first, self.augmented = first, augmented

    def __len__(self):
        return 40

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + torch.rand(()).item() if self.augmented else 0.0
        return torch.full((3,), float(self.first + index + noise)), index % 3


class Model(pl.LightningModule):
    """Notes the batches that it is trained on and its dropout masks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3))
        self.trained_on = []

    def forward(self, inputs):
        return self.network(inputs)

    def training_step(self, batch, batch_idx):
        self.trained_on += [batch[0].clone(), self.network[1](torch.ones(6))]
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Model):
    def validation_step(self, batch, batch_idx):
        pass


class WithLoaders(Model):
    """Makes its own training data, from a global random state."""

    def train_dataloader(self):
        return loader(random_split(Numbers(augmented=True), [30, 10])[0])


class LateLoaders(Model):
    """Its data is there only after its own setup."""

    def setup(self, stage):
        self.data = Numbers()

    def train_dataloader(self):
        return loader(self.data)


class Data(pl.LightningDataModule):
    def setup(self, stage):
        self.train, self.val = Numbers(), Numbers(first=1000)

    def train_dataloader(self):
        return loader(self.train)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=8)


def loader(dataset, **arguments):
    return DataLoader(dataset, **{"batch_size": 8, "shuffle": True, **arguments})


def fit(callback, model, *data, tmp_path=None, **arguments):
    quiet_trainer(callbacks=[callback], max_epochs=2, default_root_dir=tmp_path).fit(model, *data, **arguments)
    return model


@pytest.fixture
def given(tmp_path):
    """Fit a model and return the samples that its start was given."""

    def run(model, *data, samples=16, seed=0, when="fit_start", **arguments):
        watch = Watch()
        fit(InitCallback(watch, seed=seed, when=when, samples=samples), model, *data, tmp_path=tmp_path, **arguments)
        (batch,) = watch.seen
        return batch

    return run


def assert_training_samples(batch, count, lowest=0.0, highest=39.0):
    assert batch.shape == (count, 3)
    values = batch[:, 0].tolist()
    assert len(set(values)) == count
    assert lowest <= min(values) <= max(values) <= highest


@WHENS
def test_samples_are_of_the_training_set_whoever_brings_it(given, when):
    validation = DataLoader(Numbers(first=1000), batch_size=8)
    batches = [
        given(Validated(), loader(Numbers()), validation, when=when),
        given(Model(), loader(Numbers(), batch_size=5, shuffle=False), when=when),
        given(Validated(), datamodule=Data(), when=when),
    ]
    for batch in batches:
        assert_training_samples(batch, 16)
        assert torch.equal(batch, batches[0])  # a function of the seed: no loader has a say
    assert_training_samples(given(WithLoaders(), when=when), 16, highest=42.0)


def test_the_choice_follows_the_seed_and_the_number_asked_for(given):
    first, second = given(Model(), loader(Numbers())), given(Model(), loader(Numbers()), seed=1)
    assert not torch.equal(first, second)
    assert_training_samples(given(Model(), loader(Numbers()), samples=3), 3)
    assert_training_samples(given(Model(), loader(Numbers()), samples=1000), 40)


def test_the_global_seed_has_no_say_in_the_samples(given):
    batches = []
    for seed in (1, 2):
        pl.seed_everything(seed, verbose=False)
        batches.append(given(Model(), loader(Numbers(augmented=True)), seed=5))
    assert torch.equal(*batches)


def states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize(("when", "source"), [("fit_start", "loader"), ("setup", "module"), ("setup", "datamodule")])
def test_training_sees_the_same_batches_and_dropout_as_without_samples(tmp_path, as_installed, when, source):
    """In bits, with shuffling, augmentation and splits from the global random states, which end the same too."""
    ends = []
    for needs_batch in (False, True):
        pl.seed_everything(7, verbose=False)
        arguments = {
            "loader": {"train_dataloaders": loader(Numbers(augmented=True))},
            "module": {},
            "datamodule": {"datamodule": Data()},
        }[source]
        model = {"loader": Model, "module": WithLoaders, "datamodule": Validated}[source]()
        watch = Watch(needs_batch)
        fit(InitCallback(watch, when=when), model, tmp_path=tmp_path, **arguments)
        assert (watch.seen[0] is not None) == needs_batch
        ends.append((torch.cat([noted.flatten() for noted in model.trained_on]), states()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Numbers()[index] for index in range(40))


class Once(IterableDataset):
    """Can be read a single time."""

    def __init__(self):
        self.left = iter(range(40))

    def __iter__(self):
        return self

    def __next__(self):
        return Numbers()[next(self.left)]


def test_a_stream_gives_its_first_samples_and_is_trained_on_whole(given):
    model = Model()
    batch = given(model, loader(Stream(), shuffle=False), samples=4)
    assert batch[:, 0].tolist() == [0, 1, 2, 3]
    assert torch.cat(model.trained_on[:10:2])[:, 0].tolist() == list(range(40))


class OfSeveral(Model):
    """Is trained on one part of a batch of several loaders."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def probe_inputs(self, batch):
        return batch[self.part][0]

    def training_step(self, batch, batch_idx):
        return super().training_step(batch[self.part], batch_idx)


class Probes(pl.Callback):
    def on_train_start(self, trainer, pl_module):
        self.probe = probe_batch(trainer, pl_module, 4, 0)


@pytest.mark.parametrize(("when", "part", "combined"), [("fit_start", 1, False), ("setup", "labeled", True)])
def test_of_several_loaders_a_module_is_given_the_batch_that_it_trains_on(when, part, combined, tmp_path):
    two = loader(Numbers(first=1000)), loader(Numbers())
    loaders = list(two) if part == 1 else {"free": two[0], "labeled": two[1]}
    watch, probes = Watch(), Probes()
    trainer = quiet_trainer(callbacks=[InitCallback(watch, when=when), probes], default_root_dir=tmp_path)
    trainer.fit(OfSeveral(part), CombinedLoader(loaders) if combined else loaders)
    assert_training_samples(watch.seen[0], 16)
    assert_training_samples(*probes.probe.inputs, 4)
    assert (probes.probe.part, probes.probe.indices) == ("training", [])


class AsDict(Model):
    def probe_inputs(self, batch):
        return {"inputs": batch[0]}


class WithoutForward(Model):
    forward = pl.LightningModule.forward

    def __init__(self):
        super().__init__()
        self.teacher = torch.nn.Linear(2, 2)  # a second part, so that it is not clear what runs

    def training_step(self, batch, batch_idx):
        return self.network(batch[0]).sum()


@pytest.mark.parametrize(
    ("model", "data", "when", "message"),
    [
        (
            AsDict,
            Numbers,
            "fit_start",
            r"one tensor of real samples, such as images, .* AsDict\.probe_inputs\(batch\) gives dict",
        ),
        (WithoutForward, Numbers, "fit_start", r"needs WithoutForward\.forward, through which real samples run"),
        (Model, Once, "fit_start", "would use up a one-time iterator: give a DataLoader"),
        (LateLoaders, None, "setup", r"in setup, where LateLoaders\.train_dataloader\(\) fails \(AttributeError\("),
    ],
)
def test_what_gives_no_samples_is_one_line(given, model, data, when, message):
    loaders = [] if data is None else [loader(data(), shuffle=data is Numbers)]
    with pytest.raises(StructuredInitError, match=message) as error:
        given(model(), *loaders, when=when)
    assert "\n" not in str(error.value)


def test_loaders_that_are_late_for_setup_are_in_time_for_fit_start(given):
    assert_training_samples(given(LateLoaders()), 16)


# The real thing: a ViT on digits


def digits(**augmentation):
    return ImageData("digits", batch_size=64, fraction=0.2, val_fraction=0.1, seed=0, **augmentation)


def classifier():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tiny = {"embed_dim": 16, "num_heads": 2, "depth": 2}
        return ImageClassifier("vit_nano_patch2_8", tiny, num_classes=10, image_size=8, in_channels=1)


@pytest.mark.parametrize(("when", "precision"), [("fit_start", "bf16-true"), ("setup", "32-true")])
def test_a_vit_on_digits_starts_from_what_initialize_gives_on_stored_training_images(tmp_path, when, precision):
    """The images as they are stored, though training flips and crops them; chosen as documented, by a permutation."""
    start = Impulse(solver=AdamSolver(iterations=3, pseudo_input="batch"))
    stored = digits()
    stored.setup("fit")
    chosen = torch.randperm(len(stored.train_set), generator=torch.Generator().manual_seed(5))[:16].sort().values
    images = torch.stack([stored.train_set[int(index)][0] for index in chosen])
    expected = classifier()
    if when == "fit_start" and precision == "bf16-true":
        expected, images = expected.bfloat16(), images.bfloat16()
    initialize(expected, start, seed=5, batch=images)

    seen = {}

    class Watching(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            seen.update({name: tensor.clone() for name, tensor in pl_module.state_dict().items()})

    data, callback = digits(flip=True, crop_padding=1), InitCallback(start, seed=5, when=when)
    model = classifier()
    trainer = quiet_trainer(precision=precision, callbacks=[callback, Watching()], default_root_dir=tmp_path)
    trainer.fit(model, datamodule=data)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    for name, parameter in expected.named_parameters():
        assert torch.equal(seen[name], parameter.to(seen[name].dtype)), name
    assert torch.load(tmp_path / "model.ckpt", weights_only=True)["_structured_init"]["samples"] == 16


class Unheard(Model):
    """Attention of a class that nobody described, over three tokens of one number."""

    def __init__(self):
        super().__init__()
        embed, flat = nn.Sequential(nn.Unflatten(-1, (-1, 1)), nn.Linear(1, WIDTH)), nn.Flatten()
        self.network = nn.Sequential(OrderedDict(embed=embed, attn=Apart(), flat=flat, end=nn.Linear(3 * WIDTH, 3)))


@WHENS
def test_attention_that_nobody_described_is_found_on_training_samples(when, tmp_path):
    callback, model = InitCallback(Mimetic(positions="keep", vo_alpha=0.0, vo_beta=0.5), when=when), Unheard()
    without_training(callback, model, tmp_path)
    attention = model.network.attn
    product = attention.carry.weight.T @ attention.write.weight.T
    torch.testing.assert_close(product, -0.5 * torch.eye(WIDTH), atol=1e-5, rtol=0)
    assert callback.report.attention == {"network.attn": True}


def without_training(callback, model, tmp_path, dataset=None):
    trainer = quiet_trainer(max_steps=0, callbacks=[callback], default_root_dir=tmp_path)
    trainer.fit(model, DataLoader(Numbers() if dataset is None else dataset, batch_size=4))


@pytest.mark.parametrize(("when", "mapping"), [("fit_start", BatchEncoding), ("setup", dict)])
def test_attention_is_found_where_forward_takes_several_inputs(when, mapping, tmp_path):
    class Named(Unheard):
        def forward(self, *, state, action):
            return super().forward(state + action[..., None])

        def probe_inputs(self, batch):
            return mapping({"state": batch[0].double(), "action": batch[1]})

    callback = InitCallback(Mimetic(positions="keep"), when=when)
    without_training(callback, Named(), tmp_path)
    assert callback.report.attention == {"network.attn": True}


def test_where_no_sample_is_to_be_had_the_error_says_why_and_the_way_out(tmp_path):
    class Named(Unheard):
        def probe_inputs(self, batch):
            return {"images": batch[0]}

    callback = InitCallback(Mimetic(positions="keep"))
    with pytest.raises(StructuredInitError, match=r"unexpected keyword argument 'images'.*probe_inputs\(batch\)"):
        without_training(callback, Named(), tmp_path)
    with pytest.raises(StructuredInitError, match=r"register_attention.*one-time iterator|one-time.*register"):
        without_training(callback, Unheard(), tmp_path, Once())


class Slow(InitCallback):
    def on_fit_start(self, trainer, pl_module):
        super().on_fit_start(trainer, pl_module)
        self.seconds += 1000


def test_the_time_of_an_initialization_counts_and_is_kept(tmp_path):
    elapsed, start = ElapsedTime(), Slow(KaimingUniform())
    quiet_trainer(default_root_dir=tmp_path, max_steps=1, callbacks=[start, elapsed]).fit(Model(), loader(Numbers()))
    assert start.report.changed
    assert 1000 < elapsed.initialization < elapsed.seconds
    assert json.loads(json.dumps(elapsed.state_dict())) == elapsed.state_dict()
    later = ElapsedTime()
    later.load_state_dict(elapsed.state_dict())
    assert (later.seconds, later.initialization) == (elapsed.seconds, elapsed.initialization)
