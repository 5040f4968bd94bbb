"""Sharded and replicated tensors: every rank ends with the single-process plan, and a failure restores each shard.

What FSDP1 has flattened is refused with the way out.
"""

from __future__ import annotations

import socket

import pytest
import warm_process

HELD = ["restored", "sharded", "whitened", "broadcast", "flattened"]

# Two ranks with different global seeds; each prints one line per check that held.
RANK = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from timm.models.vision_transformer import Block, VisionTransformer
from structured_init import Compose, Initializer, KaimingUniform, Mimetic, PatchWhitening, Positions, initialize
from structured_init import StructuredInitError

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

def build(seed):
    torch.manual_seed(seed)
    return VisionTransformer(img_size=8, patch_size=2, embed_dim=16, depth=2, num_heads=2, num_classes=5)

start = Compose([KaimingUniform(), Mimetic()])
single = build(0)
report = initialize(single, start)

class Fails(Initializer):
    def plan(self, weights, *, rng, batch=None):
        raise RuntimeError("half way")

class OwnNumbers(Initializer):
    def plan(self, weights, *, rng, batch=None):
        weights.write(weights.model.head.bias, torch.full((5,), float(rank + 1)), "OwnNumbers")

sharded = build(0)
mesh = init_device_mesh("cpu", (2,))
for block in sharded.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(sharded, mesh=mesh)
before = {name: p.to_local().clone() for name, p in sharded.named_parameters()}
try:
    initialize(sharded, Compose([start, Fails()]))
except RuntimeError:
    assert all(torch.equal(p.to_local(), before[name]) for name, p in sharded.named_parameters())
    print("restored", flush=True)
sharded_report = initialize(sharded, start)
full = {name: p.full_tensor() for name, p in sharded.named_parameters()}
assert all(torch.equal(full[name], p) for name, p in single.named_parameters())
assert sharded_report == report
print("sharded", flush=True)

images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
for model in (single, sharded):
    initialize(model, PatchWhitening(), seed=0, batch=images)
assert torch.equal(sharded.patch_embed.proj.weight.full_tensor(), single.patch_embed.proj.weight)
print("whitened", flush=True)

replicated = build(rank)
initialize(replicated, OwnNumbers(), broadcast=True)
assert replicated.head.bias.tolist() == [1.0] * 5
print("broadcast", flush=True)
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

def build_own(seed):
    torch.manual_seed(seed)
    return nn.Sequential(Own(), Own())

def wrap(model, **options):
    policy = ModuleWrapPolicy({Block, Own})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)

def gathered(model):
    with FullyShardedDataParallel.summon_full_params(model):
        return {name: p.detach().clone() for name, p in model.named_parameters()}

tokens = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
methods = Compose([KaimingUniform(), Mimetic(positions="keep")])
for make, inputs, flat in ((build, images, "the model"), (build_own, tokens, "0")):
    plain = make(0)
    initialize(plain, methods, batch=inputs)
    expected = dict(plain.named_parameters())
    for options in ({}, {"use_orig_params": True}, {"sharding_strategy": ShardingStrategy.NO_SHARD}):
        for ran in (False, True):
            wrapped = wrap(make(0), **options)
            if ran:
                wrapped(inputs)
            before = gathered(wrapped)
            try:
                initialize(wrapped, methods, batch=inputs)
                raise SystemExit("was not refused")
            except StructuredInitError as error:
                assert str(error) == (
                    f"FSDP1 has flattened the weights of '{flat}': initialize the model before it is wrapped, or"
                    " shard it with FSDP2 (torch.distributed.fsdp.fully_shard)"
                ), error
            assert all(torch.equal(p, before[name]) for name, p in gathered(wrapped).items())
        first = make(0)
        initialize(first, methods, batch=inputs)
        found = gathered(wrap(first, **options))
        assert all(torch.equal(found[name], p) for name, p in expected.items())
    kept = wrap(make(0), sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True)
    initialize(kept, methods, batch=inputs)
    assert all(torch.equal(gathered(kept)[name], p) for name, p in expected.items())
print("flattened", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.distributed
def test_two_ranks_hold_the_single_process_plan(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    script, logs = tmp_path / "rank.py", [tmp_path / f"{rank}.log" for rank in range(2)]
    script.write_text(RANK)
    ranks = [warm_process.start(script, [], {**shared, "RANK": str(rank)}, tmp_path, logs[rank]) for rank in range(2)]
    for said in warm_process.wait(ranks, logs, 120):
        assert [line for line in said.split() if line in HELD] == HELD
