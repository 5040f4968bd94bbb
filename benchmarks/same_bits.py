"""Does a redesign leave every weight as it was? Hash what every preset writes into twelve models, before and after.

    python -m benchmarks.same_bits --write runs/bits.json                 # on the commit before
    python -m benchmarks.same_bits --write runs/now.json --against runs/bits.json

Bits depend on the processor and on the number of threads, so both are written on one machine; one thread is used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import transformers
from torch import Tensor, nn

from structured_init import StructuredInitError, initialize, preset_names

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 64, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
IMAGES, WORDS = (2, 3, 32, 32), (2, 24)


class OwnAttention(nn.Module):
    """Causal attention as many write it by hand, for which there is no written layout."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = query @ key.mT / (width // self.heads) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = logits.masked_fill(future, -torch.inf).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))


class OwnGpt(nn.Module):
    """A language model of two such layers with learned positions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(64, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(OwnAttention(width) for _ in range(2))
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


def vision(name: str, **changes: object) -> Callable[[], nn.Module]:
    """Return how a model of timm is built."""
    return lambda: timm.create_model(name, img_size=32, num_classes=5, **changes)


def language(kind: str, **changes: object) -> Callable[[], nn.Module]:
    """Return how a language model of transformers is built."""
    config = getattr(transformers, f"{kind}Config")
    model = {"T5": "T5ForConditionalGeneration", "Bert": "BertForMaskedLM"}.get(kind, f"{kind}ForCausalLM")
    model = "GPT2LMHeadModel" if kind == "GPT2" else model
    return lambda: getattr(transformers, model)(config(**changes))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ViT": (vision("vit_tiny_patch16_224", patch_size=4, depth=2, embed_dim=48, num_heads=3), IMAGES),
    "ViT, rotary": (vision("eva02_tiny_patch14_224", patch_size=4, depth=2, embed_dim=48, num_heads=3), IMAGES),
    "Swin": (vision("swin_tiny_patch4_window7_224", patch_size=2, window_size=4, depths=(1, 1), num_heads=(2, 4),
                    embed_dim=32), IMAGES),
    "ConvMixer": (lambda: timm.models.ConvMixer(32, 3, kernel_size=5, patch_size=4, num_classes=5), IMAGES),
    "GPT-2": (language("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=32, vocab_size=64, bos_token_id=0,
                       eos_token_id=1), WORDS),
    "Llama": (language("Llama", **SMALL, **TEXT, num_key_value_heads=2), WORDS),
    "BERT": (language("Bert", **SMALL, **TEXT), WORDS),
    "T5": (language("T5", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=64), WORDS),
    "Mamba": (language("Mamba", vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8), WORDS),
    "Mamba-2": (language("Mamba2", vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8, num_heads=8,
                         head_dim=8, n_groups=1), WORDS),
    "torch": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2), (2, 24, 32)),
    "own": (OwnGpt, WORDS),
}  # fmt: skip


def inputs(name: str, shape: tuple[int, ...]) -> object:
    """Return a batch; of T5, both sequences."""
    generator = torch.Generator().manual_seed(0)
    if len(shape) > 2:
        return torch.randn(shape, generator=generator)
    ids = torch.randint(3, 64, shape, generator=generator)
    return {"input_ids": ids, "decoder_input_ids": ids} if name == "T5" else ids


def bits(name: str, preset: str) -> str:
    """Return the hash of all parameters and buffers after a preset, or that it was refused."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()
    try:
        initialize(model, preset, seed=0, batch=inputs(name, shape), progress=False)
    except StructuredInitError:
        return "refused"
    digest = hashlib.blake2b(digest_size=8)
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    """Write the hashes, and print what differs from those of another commit."""
    parser = argparse.ArgumentParser(description="Hash what every preset writes into twelve models.")
    parser.add_argument("--write", type=Path, required=True)
    parser.add_argument("--against", type=Path, help="what another commit wrote")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    earlier = json.loads(given.against.read_text()) if given.against else {}
    hashes = {}
    for name in MODELS:
        for preset in preset_names():
            key = f"{name}: {preset}"
            hashes[key] = bits(name, preset)
            if earlier.get(key, hashes[key]) != hashes[key]:
                print(f"{key}: {earlier[key]} became {hashes[key]}", flush=True)
    given.write.parent.mkdir(parents=True, exist_ok=True)
    given.write.write_text(json.dumps(hashes, indent=0) + "\n")
    gone = sorted({key.partition(": ")[2] for key in earlier.keys() - hashes.keys()})
    print(f"{len(hashes)} pairs, {sum(value == 'refused' for value in hashes.values())} of them refused")
    if gone:
        print(f"presets that are gone: {', '.join(gone)}")


if __name__ == "__main__":
    main()
