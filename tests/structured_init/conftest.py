"""What the tests of every host library ask of a site; written apart from the code under test."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import types
import warnings

import numpy as np
import pytest
import torch

from structured_init import Mimetic, attention_sites, initialize
from structured_init.weights import Weights
from structured_init.writer import writing

PARTS = ("query", "key", "value", "output")


@pytest.fixture(scope="session")
def without_biases():
    """Set every bias of a module to zero: a site holds the matrices only."""

    def zero(module):
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith("bias") and parameter.ndim == 1:
                    parameter.zero_()
        return module.double().eval()

    return zero


@pytest.fixture(scope="session")
def attend():
    """Attention from a site's four matrices, in loops over heads: maps (B, H, N, M) and output (B, N, D).

    ``norms`` stand between projection and product, ``between`` between the heads side by side and the output
    projection, ``bias`` is added to the logits; they are what a host does besides.
    """

    def recompute(site, x, *, context=None, causal=False, bias=0.0, norms=(None, None), between=None):
        context = x if context is None else context
        group = site.num_heads // site.num_key_value_heads
        maps, mixed = [], []
        for head in range(site.num_heads):
            query, key = x @ site.query[head].double(), context @ site.key[head // group].double()
            query, key = (norm(t) if norm else t for norm, t in zip(norms, (query, key), strict=True))
            logits = site.scale * query @ key.mT + (bias if isinstance(bias, float) else bias[:, head])
            if causal:
                logits = logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1) == 1, -torch.inf)
            maps.append(logits.softmax(-1))
            mixed.append(maps[-1] @ context @ site.value[head // group].double())
        side_by_side = torch.cat(mixed, dim=-1)
        side_by_side = between(side_by_side) if between else side_by_side
        heads = side_by_side.split(site.output.shape[1], dim=-1)
        output = sum(part @ site.output[head].double() for head, part in enumerate(heads))
        return torch.stack(maps, dim=1), output

    return recompute


@pytest.fixture(scope="session")
def check_round_trip():
    """Write one part of every site and see that it is read back, that it fills its own entries and no others."""

    def check(model, part, cross=False):
        before = {name: tensor.clone() for name, tensor in model.state_dict(keep_vars=True).items()}
        reads = [{name: getattr(site, name) for name in PARTS} for site in attention_sites(model, cross=cross)]
        wanted = [torch.randn_like(read[part]) for read in reads]
        with writing() as writer:
            weights = Weights(model, writer)
            for site, value in zip(attention_sites(weights, cross=cross), wanted, strict=True):
                setattr(site.by("test"), part, value)
            weights.flush()
        for site, read, value in zip(attention_sites(model, cross=cross), reads, wanted, strict=True):
            for name in PARTS:
                assert torch.equal(getattr(site, name), value if name == part else read[name])
        changed = sum((tensor != before[name]).sum().item() for name, tensor in model.state_dict().items())
        assert changed == sum(value.numel() for value in wanted) > 0

    return check


@pytest.fixture(scope="session")
def check_mimetic():
    """Apply Mimetic and compare every product with the formula, from the documented draws, in numpy."""

    def targets(name, part, count, dim, beta, alpha):
        source = named_generator(3, name, part)
        for _ in range(count):
            z = torch.randn(dim, dim, dtype=torch.float64, generator=source).numpy() / dim**0.5
            yield alpha * z + beta * np.eye(dim)

    def check(model, start=None, query_key=0.7, value_output=-0.4, **options):
        report = initialize(model, start or Mimetic(positions="keep", **options), seed=3)
        sites = attention_sites(model, cross=options.get("cross", False))
        for site in sites:
            check_query_key(site, list(targets(site.name, "query_key", site.num_heads, site.embed_dim, query_key, 0.7)))
            check_value_output(site, *targets(site.name, "value_output", 1, site.embed_dim, value_output, 0.4))
        assert sites
        return report

    def check_query_key(site, wanted):
        group = site.num_heads // site.num_key_value_heads
        for head, target in enumerate(wanted):
            product = (site.query[head].double() @ site.key[head // group].double().mT).numpy()
            first = head - head % group
            # an orthonormal basis of the shared keys' span
            shared = np.linalg.svd(np.concatenate(wanted[first : first + group]))[2][: site.head_dim].T
            np.testing.assert_allclose(product, target @ shared @ shared.T, atol=2e-5)

    def check_value_output(site, target):
        group = site.num_heads // site.num_key_value_heads
        product = sum(site.value[h // group].double() @ site.output[h].double() for h in range(site.num_heads))
        rank = site.num_key_value_heads * site.value.shape[-1]
        np.testing.assert_allclose(product.numpy(), best_of_rank(target, rank), atol=2e-5)

    return check


def named_generator(seed, name, part):
    digest = hashlib.blake2b(f"{seed}\0{name}\0{part}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") // 2)


def best_of_rank(matrix, rank):
    u, s, vt = np.linalg.svd(matrix)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


@pytest.fixture(scope="session")
def generator():
    """(seed, name, part) → the generator that is documented for this draw."""
    return named_generator


@pytest.fixture(scope="session")
def truncated():
    """(matrix, rank) → the best approximation of that rank."""
    return best_of_rank


MAMBA_SSM = (
    "MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE pip install --no-build-isolation --no-deps mamba-ssm einops"
)


@pytest.fixture(scope="module")
def mamba_ssm():
    """mamba-ssm's own classes on a machine without its CUDA extension: built, but never run."""
    if importlib.util.find_spec("mamba_ssm") is None:
        pytest.skip(f"mamba-ssm is not installed: {MAMBA_SSM}")
    for name in ("mamba", "mamba2"):  # bound to their own scans before there is anything else to be bound to
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if importlib.util.find_spec("selective_scan_cuda") is None:
            patch.setitem(sys.modules, "selective_scan_cuda", types.ModuleType("selective_scan_cuda"))
        yield importlib.import_module("mamba_ssm")
    for name in [name for name in sys.modules if name.partition(".")[0] == "mamba_ssm"]:
        del sys.modules[name]
