"""How much of what libraries draw is recognized by ``structured_init.analysis.audit``, host by host.

Every host is built anew at every seed, as its library initializes it; small ones, since few numbers are the hard case.
Constants (zeros, ones) are left out. Counted are parameters whose kind is known, those with a reference that they
equal, those of which a kind was said that none of the matching references has, and problems found.

python -m benchmarks.audit_hosts --output runs/audit_hosts
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

from comparison.run.environment import environment
from lightning_modules.networks import create_network
from structured_init.analysis import Audit, audit
from structured_init.analysis.audit import Record
from structured_init.files import write_json, write_text

Host = Callable[[], tuple[nn.Module, Tensor | None]]
WIDTH = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}


def _timm(name: str, size: int | None = None, **changes: object) -> Host:
    return lambda: (timm.create_model(name, **changes), None if size is None else torch.randn(4, 3, size, size))


def _of(model: str, config: str, **changes: object) -> Host:
    return lambda: (getattr(transformers, model)(getattr(transformers, config)(**changes)), None)


HOSTS: dict[str, Host] = {
    "timm ViT": _timm("vit_tiny_patch16_224", img_size=64, depth=4),
    "timm ViT, jax": _timm("vit_tiny_patch16_224", img_size=64, depth=4, weight_init="jax"),
    "timm ViT, moco": _timm("vit_tiny_patch16_224", img_size=64, depth=4, weight_init="moco"),
    "timm DeiT III": _timm("deit3_small_patch16_224", img_size=64),
    "timm Swin": _timm("swin_tiny_patch4_window7_224", img_size=112, window_size=7),
    "timm ConvNeXt": _timm("convnext_atto", 64),
    "timm EfficientNet": _timm("efficientnet_b0", 64),
    "timm ResNet": _timm("resnet18", 64),
    "timm Mixer": _timm("mixer_s32_224"),
    "torchvision ResNet": lambda: (torchvision.models.resnet18(), torch.randn(4, 3, 64, 64)),
    "torchvision ViT": lambda: (
        torchvision.models.VisionTransformer(32, 8, 4, 3, 96, 384), torch.randn(2, 3, 32, 32)
    ),
    "ConvMixer": lambda: (create_network("convmixer_64_4_k5_p2", image_size=32), torch.randn(2, 3, 32, 32)),
    "GPT-2": _of("GPT2LMHeadModel", "GPT2Config", n_embd=128, n_layer=4, n_head=4, vocab_size=500,
                 bos_token_id=0, eos_token_id=0),
    "Llama": _of("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, vocab_size=500, **WIDTH),
    "BERT": _of("BertModel", "BertConfig", vocab_size=500, **WIDTH),
    "transformers ViT": _of("ViTModel", "ViTConfig", image_size=32, patch_size=8, **WIDTH),
    "T5": _of("T5EncoderModel", "T5Config", d_model=128, d_kv=32, d_ff=256, num_layers=4, num_heads=4, vocab_size=500),
    "Mamba": _of("MambaForCausalLM", "MambaConfig", hidden_size=128, num_hidden_layers=4, vocab_size=500),
    "Mamba-2": _of("Mamba2ForCausalLM", "Mamba2Config", hidden_size=128, num_hidden_layers=4, num_heads=32, head_dim=8,
                   state_size=16, n_groups=1, vocab_size=500),
    "LSTM": lambda: (nn.LSTM(64, 64, 2), torch.randn(5, 2, 64)),
    "nn.TransformerEncoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 4), torch.randn(2, 7, 64)
    ),
}  # fmt: skip


def main() -> None:
    """Audit host by host and write JSON and Markdown."""
    arguments = parse()
    torch.set_num_threads(1)
    rows = [measure(name, arguments.seeds) for name in arguments.hosts or HOSTS]
    record = {"settings": {"seeds": arguments.seeds}, "surroundings": environment(), "rows": rows}
    write_json(arguments.output / "audit_hosts.json", record)
    write_text(arguments.output / "audit_hosts.md", page(rows))
    print(page(rows))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/audit_hosts"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--hosts", nargs="*", choices=list(HOSTS), metavar="HOST")
    return parser.parse_args()


def measure(name: str, seeds: int) -> dict[str, object]:
    """Return counts over all seeds of one host, and the problems that were found."""
    found: list[Audit] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, batch = HOSTS[name]()
            found.append(audit(model, batch))
    records = [record for each in found for record in each.records]
    drawn = [record for record in records if record.distribution.kind != "constant"]
    known = [record for record in drawn if record.distribution.kind not in ("unclear", "other", "memory")]
    problems = {str(finding) for each in found for finding in each.findings if finding.problem}
    return {
        "host": name,
        "parameters": len(records),
        "drawn": len(drawn),
        "kind": len(known),
        "reference": sum(bool(record.references) for record in drawn),
        "either": sum(record.recognized for record in drawn),
        "contradicted": sum(_contradicts(record) for record in known),
        "problems": sorted(problems),
        "neither": sorted({record.name for record in drawn if not record.recognized}),
    }


def _contradicts(record: Record) -> bool:
    """Tell whether a kind was said that none of the references has, each of which was tested by itself."""
    kinds = {reference.expected.kind for reference in record.references}
    return (
        record.distribution.kind in ("normal", "truncated normal", "uniform")
        and bool(kinds)
        and (record.distribution.kind not in kinds)
    )


def page(rows: list[dict]) -> str:
    """Return the table as Markdown, with the sums below."""
    counts = ("parameters", "drawn", "kind", "reference", "either", "contradicted")
    total = {key: sum(row[key] for row in rows) for key in counts}
    lines = [
        "# What an audit recognizes of what libraries draw",
        "",
        "    python -m benchmarks.audit_hosts --output runs/audit_hosts",
        "",
        "Small models as their libraries build them, all seeds together. `parameters` counts every one, `drawn` those",
        "that are no constant. Of these: `kind known`, not unclear; `reference named`, equal to one without any free",
        "parameter; `kind against reference`, said to be of a kind that no matching reference has.",
        "",
        "| host | parameters | drawn | kind known | reference named | either | kind against reference | problems |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
        _line({"host": "all", "problems": [problem for row in rows for problem in row["problems"]], **total}),
    ]
    return "\n".join(lines) + "\n"


def _line(row: dict) -> str:
    shares = " | ".join(f"{row[key] / max(row['drawn'], 1):.2%}" for key in ("kind", "reference", "either"))
    counts = f"{row['parameters']} | {row['drawn']} | {shares} | {row['contradicted']} | {len(row['problems'])}"
    return f"| {row['host']} | {counts} |"


if __name__ == "__main__":
    main()
