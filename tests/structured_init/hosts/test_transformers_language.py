"""Language models of transformers with relative, rotary and linear positions: a site is what the module does.

Of a map, the logarithm less the logits of the site's queries and keys is what positions add: the same for every text.
The output is what the map, the values and the output projection give.
"""

from __future__ import annotations

import pytest
import torch
from hosts import of_transformers
from torch import nn

from structured_init import attention_sites
from structured_init.analysis import capture_attention

WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8}
TEXT = {"vocab_size": 13, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
IMAGE = {"image_size": 16, "patch_size": 4}


HOSTS = {
    "OPT": {"hidden_size": 16, "word_embed_proj_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
            "ffn_dim": 8, **TEXT},
    "GPTNeo": {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
               **TEXT},
    "Phi": WIDTH | TEXT,
    "T5Encoder": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 13},
    "Bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 4, **TEXT},
    "Mpt": {"d_model": 16, "n_heads": 4, "n_layers": 2, "vocab_size": 13},
    "Beit": {**WIDTH, **IMAGE, "use_relative_position_bias": True},
    "Swin": {**IMAGE, "embed_dim": 16, "depths": [2], "num_heads": [4], "window_size": 4},
}  # fmt: skip


@pytest.fixture(params=HOSTS)
def model(request):
    settings = {**HOSTS[request.param], "attn_implementation": "eager"}
    model = of_transformers(f"{request.param}Model", seed=0, **settings).eval()
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.3)
        if name.endswith("bias") and parameter.ndim == 1 and "norm" not in name and "ln" not in name:
            nn.init.zeros_(parameter)  # a site holds matrices alone
    if request.param == "Phi":
        model.rotary_emb.inv_freq.zero_()
    return model


def test_maps_and_outputs_are_those_of_the_four_matrices(model):
    sites = attention_sites(model)
    assert len(sites) == 2
    seen = {}

    def listen(module, args, kwargs, output):
        x = (args or tuple(kwargs.values()))[0]
        out = output[0] if isinstance(output, tuple) else output
        stream = args[1] if type(module).__name__ == "BloomAttention" else 0  # it adds what it comes to by itself
        seen[module] = x.detach().double(), (out - stream).detach().double()

    for site in sites:
        site.module.register_forward_hook(listen, with_kwargs=True)
    generator = torch.Generator().manual_seed(1)
    images = model.main_input_name == "pixel_values"
    shape = (3, 3, 16, 16) if images else (3, 9)
    batch = torch.randn(shape, generator=generator) if images else torch.randint(3, 13, shape, generator=generator)
    maps = capture_attention(model, **{model.main_input_name: batch})
    assert list(maps) == [site.name for site in sites]
    for site in sites:
        x, out = seen[site.module]
        probability = maps[site.name].double()
        query, key = (x[:, None] @ part.double() for part in (site.query, site.key))
        added = probability.clamp(min=1e-30).log() - site.scale * query @ key.mT
        allowed = probability[0] > 1e-25
        added = added - (added * allowed).sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True)
        assert torch.allclose(added[0][allowed], added[1][allowed], atol=2e-3)
        mixed = (probability @ (x[:, None] @ site.value.double()) @ site.output.double()).sum(dim=1)
        assert torch.allclose(out, mixed, atol=2e-4)
