"""Wrong inputs, each with the line that answers it: what is wrong, where, and what would be right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import lightning_modules
from lightning_modules.cli import main

ROOT = Path(lightning_modules.__file__).parents[1]

# Named by an attack on the command line: arguments of ``fit`` and the whole answer.
REPORTED = [
    ("--model.optimizer=AdamW --model.optimizer.lr=-1",
     "model.optimizer: Invalid learning rate: -1.0"),
    ("--trainer.accelerator=cpuu", "trainer.accelerator: unknown accelerator 'cpuu': did you mean 'cpu'?"),
    ("--trainer.strategy=dpp", "trainer.strategy: unknown strategy 'dpp': did you mean 'ddp'?"),
    ("--attention.enabled=true --trainer.accelerator=cpu --trainer.strategy=fsdp",
     "The strategy `fsdp` requires a GPU accelerator, but received `accelerator='cpu'`.*"),
    ("--seed_everything=a", "seed_everything: expected bool or int, got a"),
    ("--seed_everything=-1", "seed_everything is -1: a seed must be a whole number from 0 to 4294967295"),
    ("--init.seed=a", "init.seed: expected int, got a"),
    ("--init.seed=-3", "init.seed is -3: a seed must be a whole number from 0 to 4294967295"),
    ("--model.optimizer=AdmaW", "model.optimizer: unknown class 'AdmaW': did you mean 'AdamW'?"),
    ("--model.optimizer=AdamW --model.optimizer.learning_rate=1",
     "AdamW takes no argument 'learning_rate': did you mean 'lr'?"),
    ("--optim.lr=1", "unknown key 'optim.lr': did you mean 'model.optimizer.lr'?"),
    ("--learning_rate=1", "unknown key 'learning_rate': did you mean 'model.optimizer.lr'?"),
    ("--modle.class_path=ImageClassifier", "unknown key 'modle.class_path': did you mean 'model'?"),
    ("--data.data=x", "'data:' stands inside of 'data:': write it once"),
    ("--model.learning_rate=1", "ImageClassifier takes no argument 'learning_rate': did you mean 'optimizer.lr'?"),
    ("--epochs 3", "unknown key 'epochs': did you mean 'trainer.max_epochs'?"),
    ("--trainer.epochs=3", "unknown key 'trainer.epochs': did you mean 'trainer.max_epochs'?"),
    ("--data.name=uoft-cs/cifar1", "*did you mean 'uoft-cs/cifar10'?"),
    ("-c folder", "'folder' is a folder: name a file in it, choose from folder/inside.yaml"),
]  # fmt: skip

# Said by people who tried five tasks; the folder holds my_net.py, tiny.yaml and what ``place`` makes.
AT_WORK = [
    (
        "--model.network.class_path=my_net2.MyVit",
        "model.network: there is no class 'my_net2.MyVit': there is no module 'my_net2' *; did you mean 'my_net'?",
    ),
    (
        "--model.network.class_path=my_net.MyVitt",
        "model.network: there is no class 'my_net.MyVitt': did you mean 'MyVit'?",
    ),
    (
        "--model.network.class_path=timm.models.convnext.ConvNeXt --model.network.init_args.depths=[2,2]",
        "ConvNeXt cannot be built from its init_args: IndexError: tuple index out of range",
    ),
    ("--model.network.class_path=my_net.NoNet", "model.network: 'my_net.NoNet' is no Module"),
    ("--model.network.class_path=my_net/MyVit", "*'my_net/MyVit' is no path of a class: did you mean 'my_net.MyVit'?"),
    (
        "--model.network.class_path=my_net.py.MyVit",
        "*my_net.py.MyVit' is no path of a class: did you mean 'my_net.MyVit'?",
    ),
    (
        "--model.network=my_net.MyVit",
        "unknown network 'my_net.MyVit': a class of yours is given as --model.network.class_path=my_net.MyVit",
    ),
    ("--model vit_tiny", "model: 'vit_tiny' is no class of a task: a network is given with --model.network=vit_tiny"),
    (
        "--data.name=folder",
        "the folder 'folder' holds no dataset (*): it is a folder of Parquet *CLASS/NAME.png)",
    ),
    ("--fraction=0.1", "unknown key 'fraction': did you mean 'data.fraction'?"),
    ("--label_smoothing=0.1", "unknown key 'label_smoothing': did you mean 'model.label_smoothing'?"),
    ("seed=-1", "'seed=-1' belongs to no option: an option begins with two dashes, --seed_everything=-1"),
    ("vit_digits", "'vit_digits' belongs to no option: a configuration is given with -c vit_digits"),
    (
        "-c vit_digits -c vit_cifar10",
        "'vit_digits' and 'vit_cifar10' are both experiments: -c takes one; give one of the two",
    ),
    ("--init mimetic", "'init' is a section, got mimetic: an initialization is given as -c init/mimetic"),
    (
        "--init.initializer.qk_alpha=0.3",
        "Default takes no argument 'qk_alpha': give an initialization first, as in -c init/mimetic_host",
    ),
    (
        "-c init/mimetic --init.initializer.init_args.qk_alpha=0.3",
        "Compose takes no argument 'qk_alpha', its parts do: as in -c 'init/mimetic_host{qk_alpha=0.3}'",
    ),
    (
        "-c init/mimetic{vo_betta=0.2}",
        "neither Compose nor its parts take 'vo_betta': did you mean 'vo_beta'?",
    ),
    (
        "--model.network.class_path=torch.nn.Identity",
        "network_args are for a network given by its name, not for Identity: set network_args anew, as*",
    ),
    ("--model.network_args.depth=[1,2]", "network 'vit_nano_patch2_8' cannot be built with {*'list' object cannot*"),
    ("--trainer.max_time=1x", "trainer.max_time: cannot read '1x': write 55m, 2h*"),
]

# Of other kinds, and of our own choosing.
COMMAND_LINE = [
    ("-c", "--config needs a value after it"),
    ("-c=vit_digit", "there is no file 'vit_digit', nor a shipped configuration: did you mean 'vit_digits'?"),
    ("extra", "'extra' belongs to no option: several values are joined by commas, without spaces"),
    (
        "covariance",
        "'covariance' belongs to no option: a configuration is given with -c init/covariance, and several *",
    ),
    ("tiny.yaml", "'tiny.yaml' belongs to no option: a configuration is given with -c tiny.yaml"),
    ("--hepl", "unknown key 'hepl': did you mean 'help'?"),
    ("-c tiny.yaml,init/mimetic", "there is no file *: each of several has a -c of its own"),
    ("--optim=muon", "unknown key 'optim': did you mean 'model.optimizer'?"),
    ("--ckpt=x", "unknown key 'ckpt': did you mean 'ckpt_path'?"),
    ("--batch_size=3", "unknown key 'batch_size': did you mean 'data.batch_size'?"),
    ("--time-limit=0", "unknown key 'time-limit': did you mean 'trainer.max_time'?"),
    ("-c init/mimetic_state_space{decay=4}", "init.initializer.decay: expected bool, got 4"),
    ("-c init/mimetic_scramled", "*nor a shipped configuration: did you mean 'init/mimetic_scrambled'?"),
    ("-c tiny.yml", "*nor a shipped configuration: did you mean 'tiny.yaml'?"),
    ("--seed=3", "unknown key 'seed': did you mean 'seed_everything'?"),
    ("--gpus=1", "unknown key 'gpus': did you mean 'trainer.devices'?"),
    ("--max_epochs=1", "unknown key 'max_epochs': did you mean 'trainer.max_epochs'?"),
    ("--colour=red", "unknown key 'colour': choose from attention, ckpt_path, config, *"),
]
TRAINER = [
    pytest.param(
        "--trainer.accelerator=cuda",
        "trainer.accelerator names hardware that is not found here: take auto, or cpu",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
    ),
    ("--trainer.devices=0", "trainer.devices is 0: it must be at least 1, or -1 for all GPUs"),
    ("--trainer.devices=-3", "trainer.devices is -3: it must be at least 1, or -1 for all GPUs"),
    ("--trainer.devices=[0", "trainer.devices is '[0': give a number, a list such as [0,1], or auto"),
    (
        "--trainer.callbacks+=callbacks.AttentionMap",
        "*: callbacks has no 'AttentionMap': did you mean 'AttentionMapCallback'?",
    ),
    ("--trainer.devices=two", "trainer.devices is 'two': give a number, a list such as [0,1], or auto"),
    ("--trainer.precision=17", "trainer.precision: expected 64, 32 or 16, got 17"),
    ("--trainer.precision=fp16", "trainer.precision: expected *16-true, 16-mixed*, got fp16"),
    ("--trainer.max_epochs=-5", "`max_epochs` must be a non-negative integer or -1. You passed in -5."),
    ("--trainer.max_epochs=1.5", "trainer.max_epochs: expected int, got 1.5"),
    ("--trainer.max_epochs=", "trainer.max_epochs: expected int, got nothing"),
    ("--trainer.max_epochs", "--trainer.max_epochs needs a value after it"),
    ("--trainer.max_steps=-7", "`max_steps` must be a non-negative integer or -1*"),
    ("--trainer.limit_train_batches=1.5", "*1.5 for limit_train_batches, it has to be in [0.0, 1.0] or an int."),
    ("--trainer.val_check_interval=1000", "*must be less than or equal to the number of the training batches (4)*"),
    ("--trainer.gradient_clip_val=-1", "trainer.gradient_clip_val is -1: it must be at least 0"),
    ("--trainer.gradient_clip_algorithm=nrm", "*nrm is invalid. Allowed algorithms: ['value', 'norm']."),
    ("--trainer.accumulate_grad_batches=0", "trainer.accumulate_grad_batches is 0: it must be at least 1"),
    ("--trainer.check_val_every_n_epoch=0", "trainer.check_val_every_n_epoch is 0: it must be at least 1"),
    ("--trainer.log_every_n_steps=-1", "trainer.log_every_n_steps is -1: it must be at least 0"),
    ("--trainer.num_nodes=0", "trainer.num_nodes is 0: it must be at least 1"),
    ("--trainer.min_epochs=5 --trainer.max_epochs=2", "trainer.min_epochs is 5, more than trainer.max_epochs, 2"),
    ("--trainer.logger=TensorBoardLoger", "*unknown class 'TensorBoardLoger': did you mean 'TensorBoardLogger'?"),
    ("--trainer.profiler=simpl", "*it can only be one of ['simple', 'advanced', 'pytorch', 'xla']"),
    ("--trainer.max_time=soon", "trainer.max_time: cannot read 'soon': write 55m, 2h, 1h30m, 01:30:00 or a number of*"),
    ("--trainer.fast_dev_run=maybe", "trainer.fast_dev_run: expected int or bool, got maybe"),
    ("--trainer.deterministic=wran", "trainer.deterministic: expected warn or bool, got wran"),
    ("--trainer.detect_anomaly=2", "trainer.detect_anomaly: expected bool, got 2"),
    ("--trainer.callback=EarlyStopping", "unknown key 'trainer.callback': did you mean 'trainer.callbacks'?"),
    ("--trainer=3", "'trainer' is a section with keys such as trainer.accelerator, *, got 3"),
]
DATA = [
    ("--data.batch_size=0", "ImageData: batch_size must be at least 1, got 0"),
    ("--data.batch_size=1e9", "data.batch_size: expected int, got 1000000000.0"),
    ("--data.batch_size=big", "data.batch_size: expected int, got big"),
    ("--data.fraction=2", "fraction=2.0 is not in (0, 1]"),
    ("--data.val_fraction=1", "val_fraction=1.0 is not in [0, 1); 0 means no validation"),
    ("--data.name=", "the name of the dataset is empty: choose from *digits*"),
    ("--data.name=digitz", "*did you mean 'digits'?"),
    ("--data.name=bad.parquet", "'bad.parquet' is not a readable Parquet file*"),
    ("--data.config=plain_text", "'digits' has no configurations, got config='plain_text': leave it out"),
    ("--data.image_size=-8", "ImageData: image_size must be at least 1 or null, got -8"),
    ("--data.image_size=0", "ImageData: image_size must be at least 1 or null, got 0"),
    ("--data=TextDat", "data: unknown class 'TextDat': did you mean 'TextData'?"),
    ("--data=ImageClassifier", "data: unknown class 'ImageClassifier': choose from *Data, *"),
    ("--data=null", "no data is given: add a configuration with -c, such as data/digits, or --data"),
    ("--data.rand_augment=foo", "rand_augment='foo' is not a RandAugment policy of timm: *"),
    ("--data.image_column=img2", "dataset 'digits' has no column 'img2': did you mean 'image'?"),
    ("--data=TextData --data.name=digits", "no dataset 'digits' (*"),
    (
        "--data.mean=[0.5,0.5,0.5] --data.std=[1,1,1]",
        "data.mean and data.std have 3 and 3 values, but the images of 'digits' have 1 channels: set both, or both to*",
    ),
    ("--data.std=[0]", "give both mean and std, or neither to compute them from the training part"),
    ("--data.crop_scale=3", "data.crop_scale: expected list, got 3"),
]
MODEL = [
    ("--model.network=null", "network must be a name, such as vit_nano_*, got None"),
    ("--model.network=resnet5000", "unknown network 'resnet5000': did you mean 'resnet50'?"),
    ("--model.network_args.num_heads=3", "num_heads 3 does not divide embed_dim 16"),
    ("--model.network_args.depth=-1", "depth of network 'vit_nano_patch2_8' is -1: it must be a whole number from 0"),
    ("--model.network_args.depth=two", "depth of network 'vit_nano_patch2_8' is two: it must be a whole number from 0"),
    (
        "--model.network_args.embed_dim=0",
        "embed_dim of network 'vit_nano_patch2_8' is 0: it must be a whole number from 1",
    ),
    ("--model.network_args.in_chans=3", "network_args: in_chans is 3, but the data has 1: leave it to the data"),
    ("--model.network_args.img_size=16", "network_args: img_size is 16, but the data has 8: leave it to the data"),
    ("--model.network_args.num_classes=3", "network_args: num_classes is 3, but the data has 10: leave it to the data"),
    ("--model.network_args=[1]", "model.network_args: expected dict, got [1]"),
    ("--model.label_smoothing=2", "ImageClassifier: label_smoothing must be below 1, got 2.0"),
    ("--model.mixup=-1", "ImageClassifier: mixup must not be negative, got -1.0"),
    ("--model.warmup_epochs=-1", "*: warmup_epochs must not be negative, got -1.0"),
    ("--model.min_lr=-1", "*: min_lr must not be negative, got -1.0"),
    ("--model.optimizer=AdamW --model.optimizer.lr=fast", "model.optimizer.lr: expected float, got fast"),
    (
        "--model.optimizer=AdamW --model.optimizer.betas=[2,3]",
        "*Invalid beta parameter at index 0: 2.0",
    ),
    ("--model.optimizer=AdamW --model.optimizer.betas=0.9", "model.optimizer.betas: expected tuple, got 0.9"),
    ("--model.optimizer=AdamW --model.optimizer.weight_decay=-1", "model.optimizer: Invalid weight_decay value: -1.0"),
    ("--model.optimizer=SGD --model.optimizer.momentum=-1", "model.optimizer: Invalid momentum value: -1.0"),
    ("--model.optimizer=SparseAdam", "model.optimizer: SparseAdam only handles sparse gradients: use Adam or AdamW"),
    ("--model.optimizer=LBFGS", "model.optimizer: LBFGS doesn't support per-parameter options*: take another*"),
    ("--model.optimizer=timm.optim.Muon --model.optimizer.lr=-1", "model.optimizer: *learning rate*"),
    ("--model.optimizer=timm.optim.Muon --model.optimizer.adjust_lr_fn=none", "model.optimizer: *scaling function*"),
    ("--model.optimizer=timm.optim.Muon --model.optimizer.ns_coefficients=x", "model.optimizer: Unknown coefficients*"),
    ("--model.optimizer=torch.optim.Muon", "model.optimizer: Muon only supports 2D parameters*: *-c optim/muon*"),
    (
        "--model.optimizer=torch.optim.adamw",
        "model.optimizer: there is no class 'torch.optim.adamw': did you mean 'AdamW'?",
    ),
    ("--model.optimizer=adamw", "model.optimizer: unknown class 'adamw': did you mean 'AdamW'?"),
    (
        "--model.lr_schedule=[[0,1]]",
        "a schedule is a list of pairs*such as [[0, 0], [0.4, 1], [1, 0]], not [[0.0, 1.0]]",
    ),
    ("--model.lr_schedule=cosine", "model.lr_schedule: expected list, got cosine"),
    ("--trainer.strategy.class_path=ddp", "trainer.strategy: unknown class 'ddp': choose from DDPStrategy, *"),
    ("--model=Mimetic", "model: unknown class 'Mimetic': choose from *Classifier, *"),
    ("--model=torch.nn.Linear", "model: torch.nn.Linear is no LightningModule"),
    (
        "--model=nothere.Model",
        "model: there is no class 'nothere.Model': there is no module 'nothere' in the present folder or among *",
    ),
    ("--model=callbacks.Mine", "model: 'callbacks' is a package of this project, which hides your own*rename yours"),
    ("--model.compile=maybe", "model.compile: expected bool, got maybe"),
]
INIT = [
    ("--init=Mimetic", "'init' is a section, got Mimetic: an initialization is given as init: {initializer: Mimetic}"),
    ("--init.initializer=mimetic", "init.initializer: unknown class 'mimetic': did you mean 'Mimetic'?"),
    ("--init.initializer=", "init.initializer: the name of a class is missing"),
    ("--init.initializer=null", "init.initializer: expected one Initializer, got None"),
    ("--init.initializer=Compose", "Compose needs the argument 'initializers'"),
    ("--init.initializer=Impulse --init.initializer.solver=sdv", "init.initializer.solver: expected *, got sdv"),
    ("--init.initializer=Impulse --init.initializer.kernel_size=4", "*kernel_size must be odd, such as 3 or 5, got 4"),
    ("--init.initializer=Impulse --init.initializer.kernel_size=99", "*larger than the 4×4 grid of *"),
    ("--init.initializer=TruncatedNormal --init.initializer.std=-1", "*std must be positive, got -1.0"),
    ("--init.initializer=Mimetic --init.initializer.qk_alpha=1e400", "*qk_alpha must be a finite number*, got inf"),
    ("--init.initializer=Positions --init.initializer.gain=-1", "Positions: gain must not be negative, got -1.0"),
    ("--init.initializer=Mimetic --init.initializer.where=blocks.99.*", "*selects none of the 2 attention layers*"),
    ("--init.initializer=Mimetic --init.initializer.qk_sign=3", "init.initializer.qk_sign: expected 1 or -1, got 3"),
    ("--init.initializer=MimeticStateSpace", "*found no state-space layer that it recognizes; the model has *"),
    ("--init.when=now", "init.when: expected fit_start or setup, got now"),
    ("--attention.samples=-1", "*samples must be at least 1, got -1"),
    ("--attention.grid=[3,3]", "a grid of 3 × 3 does not fit attention over 16 patches: give the right grid*"),
    ("--filters.enabled=perhaps", "filters.enabled: expected bool, got perhaps"),
]
CHECKPOINT = [
    ("--ckpt_path=", "ckpt_path '' names no file, and only the process that trained knows its own: give RUN/*"),
    ("--ckpt_path=hpc", "*no HPC checkpoint was found*"),
    ("--ckpt_path=tiny.yaml", "cannot read checkpoint 'tiny.yaml': it is damaged, or it is not a checkpoint*"),
    ("--ckpt_path=other.ckpt", "'other.ckpt' is not a checkpoint of this program*"),
]
# A file, its text, and the answer.
FILES = [
    ("empty.yaml", "", "'empty.yaml' is empty: a configuration has sections such as 'model:' and 'trainer:'"),
    ("list.yaml", "- a\n- b\n", "'list.yaml' holds no keys: a configuration has sections such as *"),
    ("scalar.yaml", "hello", "'scalar.yaml' holds no keys: *"),
    ("binary.yaml", b"\x80\x81", "'binary.yaml' is not a configuration: byte 0 is not UTF-8 text; give a checkpoint *"),
    ("zeros.yaml", b"\x00\x00", "'zeros.yaml' is not YAML: *"),
    ("tabs.yaml", "model:\n\tclass_path: A\n", "'tabs.yaml', line 2, column 1: *indent with spaces, not tabs"),
    ("broken.yaml", "model: [", "'broken.yaml', line 2, column 1: *"),
    ("broken.json", '{"model": ', "'broken.json', line 2, column 1: *"),
    ("two.yaml", "a: 1\n---\nb: 2\n", "'two.yaml', line 2, column 1: expected a single document*"),
    ("alias.yaml", "model: *nope\n", "'alias.yaml', line 1, column 8: *undefined alias*"),
    ("tag.yaml", "model: !!python/object/apply:os.getcwd []\n", "'tag.yaml', line 1, column 8: *constructor for the*"),
    ("twice.yaml", "init: {seed: 1}\ninit: {seed: 2}\n", "'twice.yaml', line 2: 'init' is given twice, and only the*"),
    ("deep.yaml", "trainer:\n  max_epochs: 1\n  max_epochs: 2\n", "'deep.yaml', line 3: 'max_epochs' is given twice*"),
    ("comma.yaml", "model: {init_args: {optimizer: {init_args: {lr: 0,001}}}}",
     "'comma.yaml', line 1: the key 001 is not a name; write a decimal as 0.001"),
    ("sections.yaml", "trainer: [1, 2]", "'trainer' is a section with*"),
    ("inside.yaml", "fit: {trainer: {max_epochs: 1}}", "unknown key 'fit.trainer.max_epochs': *'trainer.max_epochs'?"),
    ("init_arg.yaml", "model: {class_path: ImageClassifier, init_arg: {network: a}}", "*did you mean 'init_args'?"),
    ("word.yaml", "model: {init_args: {optimizer: {class_path: AdamW, init_args: {lr: 1e-3x}}}}",
     "model.optimizer.lr: expected float, got 1e-3x"),
    ("inits.yaml", "init: {initializer: [Mimetic, Default]}",
     "init.initializer: expected one Initializer, got ['Mimetic', 'Default']: several of them go into Compose*"),
    ("inside.yaml", "model: {init: {initializer: Mimetic}}",
     "'init:' stands inside of 'model:': it is a section of its own, beside 'model:'"),
    ("task.yaml", "model: {class_path: ImageClassifier, init: {initializer: Mimetic}}",
     "'task.yaml', line 1: 'init:' stands inside of 'model:': it is a section of its own, beside 'model:'"),
    ("beside.yaml", "model:\n  class_path: ImageClassifier\n  network: vit_nano\n",
     "'beside.yaml', line 3: 'network' stands beside 'class_path': arguments of the class go below 'init_args'"),
    ("class.yaml", "init: {initializer: {class: Mimetic, init_args: {qk_alpha: 0.5}}}", "*did you mean 'class_path'?"),
    ("init.yaml", "init: {initializer: Mimetic, init_args: {qk_alpha: 0.5}}", "*unknown key 'init.init_args*"),
    ("without.yaml", "model:\n  lr: 0.01\n  init_args:\n    warmup_epochs: 1\n",
     "'without.yaml', line 2: 'lr' stands beside 'init_args': arguments of the class go below 'init_args'"),
    ("dashes.yaml", "init:\n- initializer: Mimetic\n", "'dashes.yaml', line 1: 'init' is a section, got a list: *"),
    ("colon.yaml", "trainer:\n  max_epochs:3\n", "'trainer' is a section, got max_epochs:3: *, max_epochs: 3"),
    ("layers.yaml", "layers: {a: 1}\n", "'layers.yaml', line 1: 'layers' is a list of names, as in [vit_digits]"),
    ("three.yaml", "layers: 3\n", "'three.yaml', line 1: 'layers' is a list of names, as in [vit_digits]"),
    ("hollow.yaml", "trainer:\n", "'trainer:' holds nothing: leave it out, or write its keys below it"),
    ("capital.yaml", "Model: {class_path: ImageClassifier}", "unknown key 'Model.class_path': did you mean 'model'?"),
    ("arguments.yaml", "init: {initializer: {class_path: Mimetic, init_args: [0.7]}}",
     "init.initializer: init_args is a section with the class's arguments, got a list"),
    ("dot.yaml", "data: {class_path: ./own.Data}", "*'./own.Data' is no path of a class: did you mean 'own.Data'?"),
    ("number.yaml", "model: {init_args: {optimizer: 0.1}}", "model.optimizer: expected a class or its path, got 0.1"),
    ("class.yaml", "init: {initializer: {class: Mimetic}}", "unknown key 'class': did you mean 'class_path'?"),
    ("optmi.yaml", "model: {init_args: {optimizer: {class_path: torch.optmi.AdamW}}}",
     "model.optimizer: there is no class 'torch.optmi.AdamW': did you mean 'optim'?"),
    ("adam.yaml", "model: {init_args: {optimizer: {class_path: torch.optim.Adamw, init_args: {lr: 0.1}}}}",
     "model.optimizer: there is no class 'torch.optim.Adamw': did you mean 'AdamW'?"),
    ("network.yaml", "model: {init_args: {network: {class_path: torch.nn.Linear, init_args: {in_features: wide}}}}",
     "model.network.in_features: expected int, got wide"),
    ("linear.yaml", "init: {initializer: {class_path: torch.nn.Linear}}",
     "init.initializer: 'torch.nn.Linear' is no Initializer"),
    ("base.yaml", "init: {initializer: {class_path: structured_init.Initializer}}",
     "init.initializer: 'structured_init.Initializer' is abstract: it lacks methods"),
    ("below.yaml", "layers: [vit_digit]\n", "'below.yaml', layers: there is no file 'vit_digit', *'vit_digits'?"),
    ("within.yaml", "trainer: {init: {initializer: Mimetic}}", "'init:' stands inside of 'trainer:': *"),
    ("training.yaml", "training: {epochs: 5}", "unknown key 'training.epochs': did you mean 'trainer.max_epochs'?"),
    ("optimizer.yaml", "optimizer: {lr: 1}", "unknown key 'optimizer.lr': did you mean 'model.optimizer.lr'?"),
    ("sections.yaml", "data: [1, 2]", "data: expected one LightningDataModule, as its name or as class_path*"),
    ("init.yaml", "init: Mimetic", "'init' is a section, got Mimetic: an initialization is given as init: *"),
    ("none.yaml", "init: {initializer: {class_path: Compose, init_args: {initializers: []}}}",
     "Compose needs at least one initializer; for none, use Default"),
    ("stop.yaml", "trainer: {callbacks: [{class_path: EarlyStopping}]}", "EarlyStopping needs the argument 'monitor'"),
    ("metric.yaml", "trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val/los}}]}",
     "*metric `val/los` which is not available*`val/loss`*"),
    ("mode.yaml", "trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val/loss, mode: most}}]}",
     "`mode` can be min, max, got most"),
]  # fmt: skip


def matches(said, expected):
    """Compare with an answer in which * stands for anything, as in a shell, and nothing else is special."""
    first, *middle, last = expected.split("*") if "*" in expected else (expected, expected)
    if "*" not in expected:
        return said == expected
    rest = said[len(first) :]
    for part in middle:
        if part not in rest:
            return False
        rest = rest.partition(part)[2]
    return said.startswith(first) and rest.endswith(last)


@pytest.fixture
def place(folder, monkeypatch):
    """The folder of the small experiment, with a few things that are easily taken for others."""
    (folder / "folder").mkdir()
    (folder / "folder" / "inside.yaml").write_text("{}")
    (folder / "callbacks").mkdir()
    (folder / "my_net.py").write_text("from torch import nn\n\nclass MyVit(nn.Module): pass\n\nclass NoNet: pass\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "my_net", raising=False)
    (folder / "bad.parquet").write_bytes(b"no")
    torch.save({"weight": torch.ones(2)}, folder / "other.ckpt")
    return folder


@pytest.mark.filterwarnings("ignore::UserWarning")  # Lightning's, of a run that comes as far as its first steps
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [*REPORTED, *AT_WORK, *COMMAND_LINE, *TRAINER, *DATA, *MODEL, *INIT, *CHECKPOINT],
    ids=lambda each: each.split()[-1][:50] if each.startswith("-") else "",
)
def test_a_wrong_command_line_is_answered_in_one_line(cli, complaint, place, arguments, answer):
    said = complaint(cli, "fit", *arguments.split(" "))
    assert matches(said, answer), said


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "text", "answer"), FILES, ids=[name for name, *_ in FILES])
def test_a_wrong_file_is_answered_in_one_line(cli, complaint, folder, name, text, answer):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    said = complaint(cli, "fit", "-c", name)
    assert matches(said, answer), said


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("report noarm.csv", "'noarm.csv' has no column 'arm': a table has the columns arm, seed and a metric, *"),
        ("report nosuch", "there is no 'nosuch': choose from *"),
        ("report noarm.csv more.csv", "'more.csv' is one too many: runs in several files are put into one *"),
        ("report tiny.yaml --opne", "unknown option '--opne': did you mean '--no-open'?"),
        (
            "compare -c tiny.yaml --output o --inits default --seeds a,b",
            "*cannot read the seeds 'a,b': write 0,1,2 or*",
        ),
        (
            "compare tiny.yaml --output o --inits default",
            "no experiment is given: add a configuration with -c, such as *",
        ),
        ("audit nosuch.safetensors", "there is no file, configuration or model 'nosuch.safetensors': *"),
        ("compare -c tiny.yaml --output o --inits default --budget 5x", "*cannot read '5x': write 55m, 2h*"),
        (
            "compare -c tiny.yaml --output o --inits default --seeds 0-99999999",
            "*'0-99999999' are more than 10,000 seeds",
        ),
        ("compare -c tiny.yaml --output o --inits default,,sincos", "a name is missing beside a comma of *"),
        (
            "compare -c tiny.yaml --output o --inits default --learning-rates 1,1",
            "the learning rates '1,1' name 1 twice",
        ),
        ("compare -c tiny.yaml --output o --inits default --no-open=x", "--no-open takes no value: *"),
        ("find -c tiny.yaml --output o --among default", "--among names nothing beside the baseline 'default'"),
        ("report noarm.csv --runs {arm}_{sed}", "--runs '{arm}_{sed}' has to have {arm} and {seed} once each*"),
        ("list --for mimetic{qk_alpha=1}", "'mimetic{qk_alpha=1}' is an initialization: --for takes a network*"),
        ("list --json=yes", "argument --json: ignored explicit argument 'yes'"),
        ("audit --model.network=vit_tiny", "'network' is an argument of the task, which is not given: *"),
        ("audit taken.safetensors", "the folder 'taken.safetensors' has no config.json of transformers"),
        ("predict -c tiny.yaml --data=null", "no data is given: add a configuration with -c*"),
        ("train -c tiny.yaml", "unknown command 'train': did you mean 'fit'?"),
        ("FIT", "unknown command 'FIT': did you mean 'fit'?"),
        ("-c tiny.yaml fit", "the command comes first: structured-init fit -c …"),
        ("test -c tiny.yaml --ckpt_path last", "ckpt_path 'last' names no file, and only the process that trained*"),
        ("test -c tiny.yaml --ckpt_path bset", "there is no checkpoint 'bset': beside it lie w.ckpt"),
        ("show -c tiny.yaml --output tiny.yaml", "cannot write to 'tiny.yaml': *is a file"),
        ("show -c tiny.yaml --output /proc/x", "cannot write to '/proc/x': *"),
        ("show -c tiny.yaml --export /proc/w.safetensors", "cannot write to '/proc': *"),
        ("show -c tiny.yaml --export taken.safetensors", "cannot write to 'taken.safetensors', a folder: name a file"),
        (
            "report . --output taken.safetensors",
            "cannot write the page to 'taken.safetensors', a folder: name a file,*",
        ),
        ("compare -c tiny.yaml --output o --inits default --gpus-per-run=-1", "*expected a number from 0, got '-1'"),
        ("compare -c tiny.yaml --output o --inits default --cpus-per-run=0", "*expected a number above 0, got '0'"),
        (
            "show --plan vit_digits",
            "plan: expected bool, got vit_digits (what follows a switch is its value, so names*",
        ),
        ("audit w.ckpt", "'w.ckpt' holds weights: name the model that they are of, and --checkpoint w.ckpt"),
        ("find -c tiny.yaml --output o --budget 2 hours", "'hours' belongs to no option: a time is one word, such as*"),
        ("show -c tiny.yaml --outptu x", "unknown key 'outptu': did you mean 'output'?"),
        ("compare -c tiny.yaml --output o --inits default sincos", "'sincos' belongs to no option: *by commas*"),
        ("compare -c tiny.yaml --output o --inits default --seeds -1,0", "*--seeds: expected one argument*"),
    ],
    ids=lambda each: each[:50],
)
def test_a_wrong_use_of_another_command_is_answered_in_one_line(complaint, folder, arguments, answer):
    (folder / "taken.safetensors").mkdir()
    (folder / "w.ckpt").touch()
    (folder / "noarm.csv").write_text("seed,accuracy\n0,0.5\n1,0.6\n")
    said = complaint(main, arguments.split(" "))
    assert matches(said, answer), said
    assert sorted(path.name for path in folder.iterdir()) == ["noarm.csv", "taken.safetensors", "tiny.yaml", "w.ckpt"]


def test_the_checkpoint_that_best_could_mean_is_named(cli, complaint, capsys):
    cli("fit", "--trainer.max_steps=1")
    said = complaint(cli, "test", "--ckpt_path=best", "--trainer.logger=false")
    assert said.endswith("give RUN/checkpoints/NAME.ckpt, such as 'lightning_logs/version_0/checkpoints/last.ckpt'")
    main(["test", "--help"])
    assert "  --ckpt_path FILE           the checkpoint's file, RUN/checkpoints/NAME.ckpt; " in capsys.readouterr().out


def test_a_last_checkpoint_that_is_not_there_is_said_in_one_line_and_the_training_starts_anew(cli, capsys):
    begun = "structured-init: --ckpt_path last: there is no checkpoint of this run to resume from: the training starts"
    for other in (
        "",
        "; to resume another run, give its file, such as 'lightning_logs/version_0/checkpoints/last.ckpt'",
    ):
        capsys.readouterr()
        run = cli("fit", "--ckpt_path=last", "--trainer.max_steps=1")
        assert run.trainer.global_step == 1
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("structured-init: --ckpt")]
        assert said == [f"{begun} anew{other}"]


@pytest.mark.filterwarnings("ignore:Checkpoint directory")  # Lightning's, of the second run into one folder
def test_a_last_checkpoint_that_is_there_is_resumed_from_without_a_word(cli, folder, capsys):
    kept = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "kept"}}
    (folder / "keeping.yaml").write_text(json.dumps({"trainer": {"callbacks": [kept]}}))
    cli("fit", "-c", "keeping.yaml", "--trainer.max_epochs=1")
    capsys.readouterr()
    resumed = cli("fit", "-c", "keeping.yaml", "--ckpt_path=last", "--trainer.max_epochs=2")
    assert resumed.trainer.ckpt_path.endswith("kept/last.ckpt")
    assert "starts anew" not in capsys.readouterr().err


def test_nothing_is_computed_before_an_output_that_cannot_be_written_is_refused(complaint, folder, monkeypatch):
    monkeypatch.setattr("lightning_modules.cli.show._view", lambda *anything: pytest.fail("it has computed"))
    complaint(main, ["show", "-c", "tiny.yaml", "--output", "tiny.yaml/seen"])


def test_a_run_without_a_logger_leaves_the_files_of_the_present_folder_alone(cli, folder):
    (folder / "experiment.yaml").write_text("mine: true")
    (folder / "init_report.json").write_text("[]")
    for _ in range(2):
        cli("fit", "--trainer.logger=false", "--trainer.max_steps=1")
    assert (folder / "experiment.yaml").read_text() == "mine: true"
    assert json.loads((folder / "init_report.json").read_text()) == []
    assert sorted(path.parent.name for path in folder.glob("lightning_logs/*/init_report.json")) == [
        "version_0", "version_1"
    ]  # fmt: skip


INTERRUPTING = """
import os, signal
from lightning.pytorch import Callback
class CtrlC(Callback):
    def __init__(self, epoch: int = 1):
        self.epoch = epoch
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the resumed run has a folder of its own
@pytest.mark.parametrize("epoch", [0, 1])
def test_ctrl_c_says_how_to_go_on(cli, folder, capsys, monkeypatch, epoch):
    (folder / "interrupting_here.py").write_text(INTERRUPTING)
    monkeypatch.syspath_prepend(folder)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    with pytest.raises(SystemExit) as stop:
        cli("fit", "--trainer.max_epochs=2", "--trainer.callbacks=interrupting_here.CtrlC",
            f"--trainer.callbacks.epoch={epoch}")  # fmt: skip
    signal.signal(signal.SIGINT, handler)  # Lightning leaves Ctrl-C switched off
    assert stop.value.code == 130
    said = capsys.readouterr().err.splitlines()[-1]
    if epoch == 0:
        assert said == "structured-init: stopped before the first checkpoint: the same command begins again"
        return
    command = said.rpartition("from the last checkpoint: ")[2].split()
    assert command[-2:] == ["--ckpt_path", "lightning_logs/version_0/checkpoints/last.ckpt"]
    resumed = main([*command[1:], "--trainer.callbacks.epoch=9"])
    assert resumed.trainer.current_epoch == 2


PRESSED = """
import os, signal
from lightning_modules.cli import entry
def main():
    {before}
    try:
        os.kill(os.getpid(), signal.{pressed})
        print("it goes on")
    except BaseException:
        {swallow}
        raise
entry.main = main
entry.command()
"""
IN_ORDER, ORDERED = "from structured_init.errors import begin_writing; begin_writing({})", "print('put in order')"


@pytest.mark.parametrize(
    ("pressed", "before", "swallow", "said"),
    [
        ("SIGINT", "", "return print('a library has caught it')", "stopped before anything was written"),
        ("SIGINT", IN_ORDER.format(""), ORDERED, "stopped"),
        (
            "SIGTERM",
            "from structured_init.errors import begin_writing; begin_writing(signal.SIGTERM)",
            ORDERED,
            "stopped",
        ),
    ],
)
def test_ctrl_c_ends_a_command_that_checks_whatever_a_library_catches_and_one_that_writes_in_order(
    pressed, before, swallow, said
):
    program = PRESSED.format(pressed=pressed, before=before, swallow=swallow)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    default = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # as a terminal starts a command
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        preexec_fn=default,
    )
    assert (ended.returncode, ended.stderr) == (130, f"structured-init: {said}\n")
    assert ended.stdout == ("put in order\n" if before else "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["structured_init", "callbacks", "comparison"])
def test_a_folder_of_the_users_that_hides_ours_is_one_line(folder, name):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    program = f"import sys\nsys.path.insert(1, {str(ROOT)!r})\nfrom lightning_modules.cli import main\nmain(['fit'])\n"
    (folder / "train.py").write_text(program)
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, cwd=folder, check=False, env=surroundings
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert f"hides this project's package '{name}': rename yours" in line


@pytest.mark.slow
def test_an_ordinary_run_shows_no_warning_of_a_library(folder):
    command = [sys.executable, "-m", "lightning_modules.cli", "fit", "-c", "tiny.yaml", "-c", "init/mimetic"]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=surroundings)
    lines = result.stderr.splitlines()
    assert not [line for line in lines if "site-packages" in line or "Warning" in line or "Tip" in line]
