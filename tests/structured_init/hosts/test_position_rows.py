"""Positions of models that nobody described: the row that is written is the token's that the model adds it to."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from hosts import Does, of_transformers
from torch import nn

from structured_init import attention_sites, initialize, position_sites
from structured_init.hosts.positions import sought_position_sites

WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
DECODER = {"decoder_hidden_size": 12, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
TEXT = {"vocab_size": 20, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 16}
IMAGE = {"image_size": 32, "patch_size": 8}
PIT = {"img_size": 32, "patch_size": 8, "stride": 4, "stem_type": "overlap"}
PIT |= {"base_dims": (4, 4), "depth": (1, 1), "heads": (2, 4)}
SPEECH = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
SPEECH |= {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "vocab_size": 20, "pad_token_id": 1}
SPEECH |= {"d_model": 16, "eos_token_id": 2, "max_position_embeddings": 16}
OPT = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "ffn_dim": 16, "word_embed_proj_dim": 16}


class Small(nn.Module):
    """In the style of nanoGPT."""

    def __init__(self):
        super().__init__()
        block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        parts = {"wte": nn.Embedding(20, 16), "wpe": nn.Embedding(16, 16), "h": nn.ModuleList([block, block])}
        self.transformer = nn.ModuleDict(parts)

    def forward(self, input_ids):
        where = torch.arange(input_ids.shape[1])
        hidden = self.transformer["wte"](input_ids) + self.transformer["wpe"](where)
        for block in self.transformer["h"]:
            hidden = block(hidden)
        return hidden


class Tutorial(nn.Module):
    """In the style of torch's tutorials: a module of a telling name that holds a table of one."""

    def __init__(self):
        super().__init__()
        self.words, self.pos_encoder = nn.Embedding(20, 16), nn.Module()
        self.pos_encoder.register_buffer("pe", torch.zeros(16, 16))
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)))

    def forward(self, input_ids):
        return self.layers(self.words(input_ids) + self.pos_encoder.pe[: input_ids.shape[1]])


TEXTS = {
    "OPT": (lambda: of_transformers("OPTModel", **OPT, **TEXT), "decoder.embed_positions.weight", 16),
    "XLM-RoBERTa": (
        lambda: of_transformers("XLMRobertaModel", **WIDTH, **TEXT),
        "embeddings.position_embeddings.weight",
        14,
    ),
    "Marian": (
        lambda: of_transformers("MarianModel", decoder_start_token_id=1, **SPEECH).encoder,
        "embed_positions.weight",
        16,
    ),
    "M2M100": (lambda: of_transformers("M2M100Model", **SPEECH).encoder, "embed_positions.weights", 16),
    "a model of one's own": (Small, "transformer.wpe.weight", 16),
    "a table and a module of telling names": (Tutorial, "pos_encoder.pe", 16),
}
IMAGES = {
    "timm's ViT": (  # of a known class: its rows are read off in the same way
        lambda: timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2),
        ["pos_embed"],
        (4, 4),
        lambda model: model.blocks[0],
    ),
    "torchvision's ViT": (
        lambda: torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 16, num_classes=3),
        ["encoder.pos_embedding"],
        (4, 4),
        lambda model: model.encoder.dropout,
    ),
    "NaFlexViT": (
        lambda: timm.models.naflexvit.NaFlexVit(
            timm.models.naflexvit.NaFlexVitCfg(
                patch_size=8, embed_dim=16, depth=2, num_heads=2, pos_embed_grid_size=(4, 4), reg_tokens=2
            )
        ),
        ["embeds.pos_embed"],
        (4, 4),
        lambda model: model.norm_pre,
    ),
    "PiT": (
        lambda: timm.models.pit.PoolingVisionTransformer(**PIT, num_classes=3),
        ["pos_embed"],
        (7, 7),
        lambda model: model.transformers[0].blocks[0],
    ),
    "ViTMAE": (
        lambda: of_transformers("ViTMAEForPreTraining", **WIDTH, **IMAGE, **DECODER),
        ["vit.embeddings.position_embeddings"],  # the decoder's tokens are in an order that masking draws
        (4, 4),
        None,
    ),
}  # fmt: skip


def mark(row):
    """Positions that are zero but for one row."""

    def does(weights):
        for site in weights.each(sought_position_sites(weights)):
            value = torch.zeros(site.num_tokens, site.embed_dim)
            value[row] = torch.linspace(-1, 2, site.embed_dim)  # a constant would not survive a norm
            site.write(value, "Mark")

    return Does(does)


@pytest.mark.parametrize("name", TEXTS)
def test_the_row_of_a_text_is_the_tokens_in_its_place(name):
    build, table, length = TEXTS[name]
    model, texts = build().eval(), {"input_ids": torch.full((2, 9), 7)}
    (site,) = position_sites(model, batch=texts)
    assert (site.name, site.grid, site.num_tokens) == (table, None, length)
    assert site.saved == (name != "M2M100")
    initialize(model, mark(5), batch=texts)
    with torch.no_grad():
        for module in model.modules():  # what else is added is the same for all tokens
            if isinstance(module, nn.Embedding) and module.weight is not site.tensor:
                module.weight.zero_()
    seen = first_input(model, lambda: model(input_ids=torch.full((1, 9), 7)))
    assert different(seen) == [5]


@pytest.mark.parametrize("name", IMAGES)
def test_the_row_of_an_image_is_the_patchs(name):
    build, tables, (rows, columns), before_layers = IMAGES[name]
    model = build().eval()
    images = torch.randn(2, 3, 32, 32)
    sites = position_sites(model, batch=images)
    assert [(site.name, site.grid, site.num_tokens) for site in sites] == [
        (table, (rows, columns), rows * columns) for table in tables
    ]
    if before_layers is None:
        return
    initialize(model, mark(2 * columns + 1), batch=images)
    seen = []
    before_layers(model).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for module in model.modules():  # patches without content
        if isinstance(module, nn.Conv2d) or (isinstance(module, nn.Linear) and module.in_features == 192):
            module.register_forward_hook(lambda module, inputs, output: output * 0)
    with torch.no_grad():
        for parameter in (p for n, p in model.named_parameters() if "token" in n):
            parameter.zero_()
        model(torch.zeros(1, 3, 32, 32))
    tokens = seen[0][0].reshape(-1, seen[0].shape[-1])
    assert different(tokens[-rows * columns :]) == [2 * columns + 1]
    assert len(tokens) - rows * columns == prefix_tokens(model, images)


class Cast(Tutorial):
    """Sinusoids that are held in float32 and added in bfloat16; their first row is ones in both."""

    def __init__(self):
        super().__init__()
        self.bfloat16()
        self.pos_encoder.pe = (torch.arange(16)[:, None] * 0.5 ** torch.arange(16)).cos()

    def forward(self, input_ids):
        return self.layers(self.words(input_ids) + self.pos_encoder.pe.to(torch.bfloat16)[: input_ids.shape[1]])


def test_rows_that_are_cast_before_they_are_added_are_found():
    (site,) = position_sites(Cast(), batch={"input_ids": torch.full((2, 9), 7)})
    assert (site.name, site.num_tokens) == ("pos_encoder.pe", 16)


def first_input(model, run):
    """What the first attention layer is given."""
    seen = []
    site = next(iter(attention_sites(model)), None)
    layer = site.module if site else next(m for m in model.modules() if type(m).__name__.endswith("Attention"))
    layer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args or tuple(kwargs.values()))[0]), with_kwargs=True
    )
    with torch.no_grad():
        run()
    return seen[0][0]


def different(tokens):
    """The numbers of the tokens that are not like most."""
    usual = tokens.median(dim=0).values
    return (~torch.isclose(tokens, usual, atol=1e-6)).any(-1).nonzero()[:, 0].tolist()


def prefix_tokens(model, images):
    sites = attention_sites(model, batch=images)
    return sites[0].prefix_tokens if sites else 0
