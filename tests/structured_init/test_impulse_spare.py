"""SparePositions: attention can neither read nor write the directions of the positions, and all else is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml

import structured_init
from structured_init import Compose, Mimetic, Positions, StructuredInitError, attention_sites, initialize
from structured_init.analysis import capture_attention, impulse_mass
from structured_init.attention.impulse import SparePositions
from structured_init.draws import Draws

CODES = Positions("codes", kappa=2.0)


def started(vit, *parts):
    model = vit()
    initialize(model, Compose([CODES, *parts]))
    return model, attention_sites(model)


def test_what_is_spared_is_exactly_the_span_of_the_positions(tiny_vit):
    """The projector from numpy's pseudo-inverse; positions of a class token do not count."""
    values = Mimetic(query_key=False, positions="keep")
    model, spared = started(tiny_vit, values, SparePositions())
    _, plain = started(tiny_vit, values)
    positions = model.pos_embed[0, 1:].detach().double().numpy()
    positions = positions - positions.mean(0)
    free = np.eye(16) - np.linalg.pinv(positions, rcond=1e-3) @ positions
    for site, before in zip(spared, plain, strict=True):
        np.testing.assert_allclose(site.value, free @ before.value.double().numpy(), atol=1e-6)
        np.testing.assert_allclose(site.output, before.output.double().numpy() @ free, atol=1e-6)
        assert torch.equal(site.query, before.query)


@pytest.mark.parametrize(("read", "write"), [(True, False), (False, True)])
def test_reading_and_writing_are_two_choices(tiny_vit, read, write):
    _, spared = started(tiny_vit, SparePositions(read=read, write=write))
    _, plain = started(tiny_vit)
    for site, before in zip(spared, plain, strict=True):
        assert torch.equal(site.value, before.value) != read
        assert torch.equal(site.output, before.output) != write


def test_neither_reading_nor_writing_is_refused():
    with pytest.raises(StructuredInitError, match="read and write are both off: there is nothing to write"):
        SparePositions(read=False, write=False)


def test_positions_that_fill_the_width_and_models_without_positions_are_one_line(tiny_vit):
    with pytest.raises(StructuredInitError, match="'pos_embed' takes all 8 directions"):
        initialize(tiny_vit(embed_dim=8), SparePositions())
    with pytest.raises(
        StructuredInitError, match=r"no position embedding was recognized in the model of 'blocks\.0\.attn'"
    ):
        initialize(tiny_vit(pos_embed="none"), SparePositions())


def built(tree):
    """An initializer from its configuration."""
    if isinstance(tree, list):
        return [built(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    arguments = {name: built(value) for name, value in tree.get("init_args", {}).items()}
    return getattr(structured_init, tree["class_path"])(**arguments)


def test_the_preset_separable_keeps_attention_on_its_impulse_in_every_one_of_twelve_layers():
    """Without SparePositions mimetic values erase the positions, and the mass with them."""
    path = Path(structured_init.__file__).parents[1] / "configs" / "init" / "separable.yaml"
    preset = built(yaml.safe_load(path.read_text(encoding="utf-8"))["init"]["initializer"])
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 2, "embed_dim": 192, "depth": 12, "num_heads": 3}
    model = timm.models.VisionTransformer(**sizes, class_token=False, global_pool="avg", num_classes=3).eval()
    initialize(model, preset)
    maps = capture_attention(model, torch.randn(4, 3, 16, 16), max_samples=None)
    impulse = preset.initializers[0]
    masses = [
        impulse_mass(maps[site.name], impulse.head_offsets(site, Draws(0)), site.grid).mean().item()
        for site in attention_sites(model)
    ]
    assert len(masses) == 12
    assert min(masses) > 0.25  # of white noise; of photographs 0.46, see docs/impulse.md
