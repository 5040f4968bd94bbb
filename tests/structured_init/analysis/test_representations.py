import pytest
import torch
from torch import nn

from structured_init.analysis import gram_matrices


@pytest.fixture
def images():
    return torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def vit(tiny_vit):
    return tiny_vit(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, drop_rate=0.1)


def centred_gram(features: torch.Tensor) -> torch.Tensor:
    """The Gram matrix of features less their mean, by the centring matrix on both sides."""
    m = len(features)
    flat = features.reshape(m, -1).double()
    h = torch.eye(m, dtype=torch.float64) - 1 / m
    return h @ (flat @ flat.T) @ h


def test_gram_matrices_are_those_of_the_blocks_outputs_minibatch_by_minibatch(vit, images):
    found = gram_matrices(vit, images, batch_size=5)
    assert list(found) == ["blocks.0", "blocks.1", "blocks.2"]
    assert {(tuple(gram.shape), gram.dtype) for gram in found.values()} == {((2, 5, 5), torch.float64)}
    with torch.no_grad():
        tokens = vit.eval().forward_intermediates(
            images, norm=False, intermediates_only=True, return_prefix_tokens=True
        )
    for index, (patches, prefix) in enumerate(tokens):
        features = torch.cat([prefix, patches.flatten(2).mT], dim=1)
        for batch in range(2):
            expected = centred_gram(features[5 * batch : 5 * batch + 5])
            torch.testing.assert_close(found[f"blocks.{index}"][batch], expected, atol=1e-4, rtol=1e-4)


def test_sequence_first_layers_are_turned_around():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=first) for first in (True, False)]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(6, 4, 8)

    class Turned(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layers = nn.ModuleList([layer, layer.__class__(8, 2, 16)])

        def forward(self, x):
            return self.layers[0](x)

    class SequenceFirst(Turned):
        def forward(self, x):
            return self.layers[0](x.transpose(0, 1)).transpose(0, 1)

    first, second = gram_matrices(Turned(layers[0]), x), gram_matrices(SequenceFirst(layers[1]), x)
    assert list(first) == ["layers.0"]  # the other one was not run
    torch.testing.assert_close(first["layers.0"], second["layers.0"], atol=1e-5, rtol=1e-5)


def test_block_that_is_run_twice_has_a_name_per_call():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))

        def forward(self, x):
            for layer in (*self.layers, self.layers[0]):
                x = layer(x)
            return x

    found = gram_matrices(Shared(), torch.randn(10, 4), batch_size=5)
    assert {name: tuple(gram.shape) for name, gram in found.items()} == {
        "layers.0": (2, 5, 5),
        "layers.1": (2, 5, 5),
        "layers.0:2": (2, 5, 5),
    }
