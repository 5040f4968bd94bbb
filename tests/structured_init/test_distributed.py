"""Sharded and replicated tensors: every rank ends with the single-process plan, and a failure restores each shard."""

from __future__ import annotations

import socket

import pytest
import warm_process

HELD = ["restored", "sharded", "whitened", "broadcast"]

# Two ranks with different global seeds; each prints one line per check that held.
RANK = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from timm.models.vision_transformer import VisionTransformer
from structured_init import Compose, Initializer, KaimingUniform, Mimetic, PatchWhitening, Positions, initialize

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
assert sharded_report.to_dict() == report.to_dict()
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
