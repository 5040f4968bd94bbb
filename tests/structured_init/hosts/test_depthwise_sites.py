"""Depthwise sites: which convolutions they are, where they stand, and that they are written through the overlay."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from structured_init import FilterCovariance, SpatialFilters, StructuredInitError, depthwise_conv_sites, initialize

TIMM = {
    "convmixer": lambda: timm.models.convmixer.ConvMixer(8, 5, kernel_size=(3, 5), patch_size=2, num_classes=3),
    "mobilenet": lambda: timm.create_model("mobilenetv3_small_050", num_classes=3),
}


def one_channel_each(module):
    """Whether every output depends on a single one of several inputs, seen by its gradient at full size."""
    if not isinstance(module, nn.Conv1d | nn.Conv2d) or module.in_channels < 2:
        return False
    seen = [set() for _ in range(module.out_channels)]
    size = (16,) * (module.weight.ndim - 2)
    x = torch.ones(1, module.in_channels, *size, requires_grad=True)
    y = module(x)[0].flatten(1).sum(dim=1)
    for output in sorted({0, len(y) // 2, len(y) - 1}):
        (gradient,) = torch.autograd.grad(y[output], x, retain_graph=True)
        seen[output] = set(gradient[0].flatten(1).any(dim=1).nonzero().flatten().tolist())
        if len(seen[output]) > 1:
            return False
    return module.weight[0, 0].numel() > 1


@pytest.mark.parametrize("host", TIMM)
def test_the_sites_are_the_layers_whose_outputs_depend_on_one_input_each(host):
    torch.manual_seed(0)
    model = TIMM[host]()
    expected = [name for name, module in model.named_modules() if one_channel_each(module)]
    sites = depthwise_conv_sites(model)
    assert [site.name for site in sites] == expected
    assert len(sites) > 3
    assert [site.depth for site in sites] == pytest.approx([i / (len(sites) - 1) for i in range(len(sites))])


@pytest.mark.parametrize(
    ("layer", "kernel", "filters"),
    [
        (nn.Conv2d(6, 6, 3, groups=6), (3, 3), 6),
        (nn.Conv2d(6, 6, (4, 7), stride=(2, 1), dilation=(1, 3), groups=6, bias=False), (4, 7), 6),
        (nn.Conv1d(6, 6, 5, dilation=2, groups=6), (5,), 6),
        (nn.Conv2d(6, 18, (1, 3), groups=6), (1, 3), 18),
    ],
)
def test_a_site_says_what_its_layer_is(layer, kernel, filters):
    (site,) = depthwise_conv_sites(nn.Sequential(nn.ReLU(), layer))
    assert (site.name, site.num_filters, site.depth, site.kernel_size) == ("1", filters, 0, kernel)
    assert torch.equal(site.filters, layer.weight.detach().squeeze(1))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 6, 3),
        nn.Conv2d(6, 6, 3, groups=3),
        nn.Conv2d(1, 6, 3),  # ordinary: gray images
        nn.Conv2d(6, 6, 1, groups=6),  # no neighbours
        nn.ConvTranspose2d(6, 6, 3, groups=6),
        nn.Linear(6, 6),
    ],
)
def test_what_is_not_depthwise_is_no_site(layer):
    assert depthwise_conv_sites(nn.Sequential(layer)) == []


def test_depth_counts_every_layer_whatever_is_selected():
    model = TIMM["convmixer"]()
    assert [site.depth for site in depthwise_conv_sites(model, "blocks.[34].*")] == [0.75, 1.0]
    assert [site.name for site in depthwise_conv_sites(model, lambda site: site.depth < 0.3)] == [
        "blocks.0.0.fn.0",
        "blocks.1.0.fn.0",
    ]


def test_a_computed_weight_is_skipped_and_reported():
    tail = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, groups=4))
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), tail)
    before = tail.weight.clone()
    report = initialize(model, FilterCovariance(frozen=True))
    assert report.skipped == {"1": "its weight is computed by a parametrization"}
    assert torch.equal(tail.weight, before)
    assert all(parameter.requires_grad for parameter in tail.parameters())
    assert not model[0].weight.requires_grad


def test_no_site_is_one_line_that_says_what_the_model_has():
    said = "^SpatialFilters found no depthwise convolution; the model has BatchNorm2d, Conv2d$"
    with pytest.raises(StructuredInitError, match=said):
        initialize(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)), SpatialFilters())
    with pytest.raises(StructuredInitError, match=r"selects none of the 5 depthwise convolutions \(blocks.0.0.fn.0, "):
        initialize(TIMM["convmixer"](), SpatialFilters(where="block.1"))


def test_a_depthwise_layer_of_another_class_is_named_with_the_reason():
    model, why = nn.Sequential(nn.Conv3d(4, 4, 3, groups=4)), "Conv3d is no nn.Conv1d or nn.Conv2d"
    with pytest.raises(StructuredInitError, match=f"found no depthwise convolution; {why}$"):
        initialize(model, FilterCovariance())
    model.append(nn.Conv2d(4, 4, 3, groups=4))
    assert initialize(model, FilterCovariance()).skipped == {"0": why}
    assert initialize(model, FilterCovariance(where="1")).skipped == {}
