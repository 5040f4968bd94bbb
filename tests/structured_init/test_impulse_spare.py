"""SparePositions: attention can neither read nor write the directions of the positions, and all else is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from structured_init import Compose, Mimetic, Positions, StructuredInitError, attention_sites, initialize
from structured_init.attention.impulse import SparePositions

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


@pytest.mark.parametrize(("read", "write"), [(True, False), (False, True), (False, False)])
def test_reading_and_writing_are_two_choices(tiny_vit, read, write):
    _, spared = started(tiny_vit, SparePositions(read=read, write=write))
    _, plain = started(tiny_vit)
    for site, before in zip(spared, plain, strict=True):
        assert torch.equal(site.value, before.value) != read
        assert torch.equal(site.output, before.output) != write


def test_positions_that_fill_the_width_and_models_without_positions_are_one_line(tiny_vit):
    with pytest.raises(StructuredInitError, match="'pos_embed' takes all 8 directions"):
        initialize(tiny_vit(embed_dim=8), SparePositions())
    with pytest.raises(StructuredInitError, match=r"the model of 'blocks\.0\.attn' has no positions"):
        initialize(tiny_vit(pos_embed="none"), SparePositions())
