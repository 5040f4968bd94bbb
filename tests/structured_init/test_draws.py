"""Named draws: a function of (seed, name, part) and of nothing else."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from transformers import MambaConfig, MambaForCausalLM

from structured_init import (
    Compose,
    KaimingUniform,
    MambaReference,
    MimeticStateSpace,
    StructuredInitError,
    TruncatedNormal,
    UniformProjections,
    initialize,
)
from structured_init.util.draws import Draws

# From hashlib by hand: blake2b of "0\0blocks.0.attn\0query_key" in 8 bytes, little endian, without its lowest bit.
GOLDEN_SEED = 3422044472586377158

HASH_A_START = """
import hashlib, torch
torch.set_num_threads(1)
torch.seed()
from timm.models.vision_transformer import VisionTransformer
from structured_init import Compose, KaimingUniform, Mimetic, Positions, initialize
sizes = dict(img_size=8, patch_size=2, embed_dim=16, depth=2, num_heads=2, num_classes=5)
model = VisionTransformer(**sizes, global_pool="avg", class_token=False)
initialize(model, Compose([KaimingUniform(), Mimetic(), Positions("codes")]), seed=7)
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(digest.hexdigest())
"""


def test_the_numbers_are_those_of_a_generator_whose_seed_is_a_published_hash():
    digest = hashlib.blake2b(b"0\0blocks.0.attn\0query_key", digest_size=8).digest()
    assert int.from_bytes(digest, "little") // 2 == GOLDEN_SEED
    expected = torch.randn(5, generator=torch.Generator().manual_seed(GOLDEN_SEED))
    assert torch.equal(torch.randn(5, generator=Draws(0).generator("blocks.0.attn", "query_key")), expected)


def test_each_of_seed_name_and_part_matters_and_none_runs_into_the_next():
    keys = [(0, "a", "b"), (1, "a", "b"), (0, "b", "a"), (0, "ab", ""), (0, "", "ab"), (10, "a", "b")]
    keys += [(2**70, "a", "b")]
    seeds = {Draws(seed).generator(name, part).initial_seed() for seed, name, part in keys}
    assert len(seeds) == len(keys)


@pytest.mark.slow
def test_another_process_with_another_hash_seed_starts_alike(capsys):
    """Each builds another model, but every parameter that the host draws is written (it has no class token)."""
    with torch.random.fork_rng(devices=[]):
        exec(HASH_A_START, {})
    here = capsys.readouterr().out
    environment = {**os.environ, "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HASH_A_START]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert len(here.strip()) == 64
    assert here == there


def test_weights_in_float64_get_the_numbers_of_float32():
    config = MambaConfig(vocab_size=11, hidden_size=16, num_hidden_layers=1, state_size=4)
    for start, build in (
        (KaimingUniform(), partial(VisionTransformer, img_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=2)),
        (TruncatedNormal(), partial(nn.Linear, 3, 4)),
        (UniformProjections(), partial(nn.MultiheadAttention, 8, 2, batch_first=True)),
        (Compose([MambaReference(), MimeticStateSpace()]), partial(MambaForCausalLM, config)),
    ):
        single, double = build(), build().double()
        report = initialize(single, start, seed=3)
        initialize(double, start, seed=3)
        for entry in report.changed:
            one, other = (model.get_parameter(entry.names[0]) for model in (single, double))
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", [-1, 0.9, 1.0, "a", None])
def test_a_seed_that_is_no_whole_number_is_refused_in_one_line(as_installed, seed):
    """0.9 meant 0, without a word."""
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    with pytest.raises(StructuredInitError) as caught:
        initialize(model, KaimingUniform(), seed=seed)
    assert str(caught.value) == f"seed must be a whole number from 0, got {seed!r}"
    assert torch.equal(model.weight, before)


def test_whole_numbers_of_other_libraries_are_seeds(as_installed):
    assert Draws(np.int64(3)).seed == 3
    report = initialize(nn.Linear(2, 2), KaimingUniform(), seed=np.int32(4))
    assert report.to_dict()["seed"] == 4
