"""What share of attention do `PreviousToken` and `Induction` have in language hosts, beside what the report says?

    python -m benchmarks.previous_token_hosts --output benchmarks/results
    python -m benchmarks.previous_token_hosts --only gpt2 llama     # a look at a few

One small random model a host, four heads, two layers of width 128 and 128 tokens unless its name says otherwise, with
the host's own standard deviations. Each is measured in a process of its own, by the host's eager attention
(``output_attentions``), or, where it gives none, by ``capture_attention``. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.conformance import in_a_fork
from benchmarks.conformance_models import installed_versions, put, small
from structured_init import Induction, PreviousToken, StructuredInitError, initialize
from structured_init.analysis import capture_attention

CONTEXT, SAMPLES = 128, 8
NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx")
HOSTS = (
    "gpt2 gpt_neo gptj codegen gpt_neox gpt_neox_japanese gpt_bigcode openai-gpt opt bloom mpt falcon llama mistral "
    "mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi phi3 olmo olmo2 starcoder2 stablelm "
    "persimmon cohere cohere2 glm granite smollm3 nemotron gpt_oss exaone4 xglm ctrl biogpt helium arcee seed_oss "
    "bert roberta electra albert camembert xlm-roberta mpnet modernbert roformer distilbert megatron-bert rembert "
    "big_bird data2vec-text ernie eurobert t5 mt5 umt5 bart mbart marian pegasus blenderbot m2m_100 bigbird_pegasus "
    "plbart led"
)
BEHIND_PADDING = ("roberta", "camembert", "xlm-roberta", "data2vec-text", "mpnet")  # where positions begin
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
WINDOWS = {"window_size": 16, "attention_layers": ["local", "local"]}
SIZES = {
    **{f"gpt2, {width} wide": ("gpt2", {"n_embd": width}) for width in (64, 256)},
    "gpt2, 768 wide, 12 heads": ("gpt2", {"n_embd": 768, "n_head": 12}),
    "gpt2, 768 wide, 12 heads, 12 layers": ("gpt2", {"n_embd": 768, "n_head": 12, "n_layer": 12}),
}
WIDE = {"hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 2048}
SIZES["llama, 768 wide, 12 heads, 12 layers"] = ("llama", {**WIDE, "head_dim": 64, "num_hidden_layers": 12})
SIZES["llama, positions divided by 4"] = ("llama", {"rope_parameters": LINEAR})
for name in ("marian", "pegasus", "bart"):
    SIZES[f"{name}, embeddings times √d"] = (name, {"scale_embedding": True})
SIZES["big_bird, embeddings times √d"] = ("big_bird", {"rescale_embeddings": True})
SIZES["gpt_neo, windows of 16"] = ("gpt_neo", WINDOWS)
SIZES["mistral, windows of 16"] = ("mistral", {"sliding_window": 16})


def hosts() -> dict[str, Callable[[], nn.Module]]:
    """Return every host by name."""
    return {name: partial(build, *SIZES.get(name, (name, {}))) for name in (*SIZES, *HOSTS.split())}


def build(name: str, options: dict[str, object]) -> nn.Module:
    """Build the base model of a host of transformers, small, with some settings of its own."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    config = small(CONFIG_MAPPING[name](), factor=4, spread=None)
    for setting in NAMES:
        if isinstance(getattr(config, setting, None), int):
            put(config, setting, CONTEXT + 2 * (name in BEHIND_PADDING))
    if getattr(config, "rotary_dim", None):
        config.rotary_dim = 32
    if hasattr(config, "query_pre_attn_scalar"):
        config.query_pre_attn_scalar = 32  # the width of a head, as in the real ones
    for setting, value in options.items():
        setattr(config, setting, value)
    model = MODEL_MAPPING_NAMES[name]
    return getattr(transformers, model if isinstance(model, str) else model[0])(config).eval()


def recorded(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """Return module → maps (batch, heads, queries, keys) that the host's eager attention itself gives."""
    maps: dict[str, Tensor] = {}

    def keep(name: str, _: nn.Module, __: tuple, output: object) -> None:
        for each in output if isinstance(output, tuple | list) else ():
            square = isinstance(each, Tensor) and each.ndim == 4 and each.shape[-1] == each.shape[-2]
            # T5 returns its biases as well
            if square and name not in maps and torch.allclose(each.sum(-1), torch.ones(()), atol=1e-3):
                maps[name] = each

    inputs = {"input_ids": tokens}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens
    try:
        model.set_attn_implementation("eager")
        handles = [each.register_forward_hook(partial(keep, name)) for name, each in model.named_modules()]
        with torch.no_grad():
            model(**inputs, output_attentions=True, use_cache=False)
        for handle in handles:
            handle.remove()
    except (TypeError, ValueError):
        maps = {}
    return maps or capture_attention(model, **inputs, max_samples=None)


def share_on(maps: Tensor, offset: int) -> float:
    """Return the mean attention of the second half of queries on the token ``offset`` before."""
    length = maps.shape[-1]
    queries = torch.arange(max(length // 2, offset), min(length, length + offset))
    return maps[:, queries, queries - offset].mean().item()


def examined(name: str) -> dict[str, object]:
    """Return one row: per layer what the report says and what the recorder shows, of both initializers."""
    torch.manual_seed(0)
    row: dict[str, object] = {}
    vocabulary = hosts()[name]().config.get_text_config().vocab_size
    tokens = torch.randint(5, vocabulary, (SAMPLES, CONTEXT))
    half = torch.stack([torch.randperm(vocabulary - 5)[: CONTEXT // 2] + 5 for _ in range(SAMPLES)])
    for method, given in ((PreviousToken(context=CONTEXT), tokens), (Induction(context=CONTEXT), half.repeat(1, 2))):
        torch.manual_seed(0)
        model, key = hosts()[name](), type(method).__name__
        try:
            report = initialize(model, method, progress=False)
        except StructuredInitError as error:
            row[key] = str(error)
            continue
        maps = recorded(model, given)
        read = previous if key == "PreviousToken" else induced
        row[key] = {layer: each for layer, note in report.notes.items() for each in read(note, _within(maps, layer))}
        row[f"{key}: warnings"] = report.warnings
    return row


def _within(maps: dict[str, Tensor], layer: str) -> Tensor | None:
    """Return the maps of a layer, whichever of the modules in or around it gives them."""
    around = [name for name in maps if name.startswith(f"{layer}.") or layer.startswith(f"{name}.")]
    return maps[layer] if layer in maps else maps[max(around, key=len)] if around else None


def previous(note: str, maps: Tensor | None) -> Iterator[dict[str, object]]:
    """Yield what a note says of heads on offsets, its least share, beside that of the maps."""
    found = re.search(
        r"attention on offsets at the end of ([\d,]+) tokens, (measured|predicted): (.*?) \((on|not)", note
    )
    if found is None or maps is None:
        return
    heads = re.findall(r"(-?\d+): (\d\.\d\d)(?: \(predicted (\d\.\d\d)\))?", found[3])
    measured = [share_on(maps[:, head], int(offset)) for head, (offset, _, _) in enumerate(heads)]
    said = min(float(share) for _, share, _ in heads)
    yield {
        "said": said,
        "how": found[2],
        "predicted": min(float(predicted or share) for _, share, predicted in heads),
        "measured": round(min(measured), 3),
        "tokens": int(found[1].replace(",", "")),
    }


def induced(note: str, maps: Tensor | None) -> Iterator[dict[str, object]]:
    """Yield what a note says of a head that continues what came before, beside the maps."""
    heads = re.findall(r"head (\d+): (\d\.\d\d)(?: \(predicted (\d\.\d\d)\))?(?: at ([\d,]+) tokens)?", note)
    if "followed an equal token" not in note or not heads or maps is None:
        return
    for head, share, predicted, tokens in heads:
        yield {
            "said": float(share),
            "predicted": float(predicted or share),
            "measured": round(share_on(maps[:, int(head)], CONTEXT // 2 - 1), 3),
            "tokens": int(tokens.replace(",", "")) if tokens else CONTEXT,
        }


def page(rows: dict[str, dict[str, object]], versions: dict[str, str]) -> str:
    """Return the table as a page of Markdown."""
    lines = [
        "# Previous tokens and induction in language hosts",
        "",
        "`python -m benchmarks.previous_token_hosts --output benchmarks/results`. Random weights of seed 0, four heads",
        "and two layers of width 128 unless the name says otherwise, 128 tokens; "
        + ", ".join(f"{library} {versions[library]}" for library in ("torch", "transformers"))
        + ".",
        "*Measured* is what the host's own eager attention shows on random tokens: of `PreviousToken` the least of all",
        "written heads' mean share on its offset in the second half of the context, of `Induction` the share on what",
        "followed an equal token in random tokens that come twice. *Said* is the number in the report, *predicted*",
        "what stands beside it where it was solved for another one.",
        "",
        "| host | layer | offsets: said | measured | predicted | induction: said | measured | predicted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for host, row in rows.items():
        first, second = row.get("PreviousToken", row.get("failed")), row.get("Induction", row.get("failed"))
        layers = [*(first if isinstance(first, dict) else ()), *(second if isinstance(second, dict) else ())]
        for layer in layers or [""]:
            cells = [cell for each in (first, second) for cell in _cells(each, layer)]
            lines.append(f"| {host} | {layer} | {' | '.join(cells)} |")
    refused = [f"- {host}: {why}" for host, row in rows.items() for why in row.values() if isinstance(why, str)]
    warned = [f"- {host}: {why}" for host, row in rows.items() for key in row if "warn" in key for why in row[key]]
    return "\n".join([*lines, "", "Refused:", "", *refused, "", "Warned of:", "", *warned]) + "\n"


def _cells(found: object, layer: str) -> list[str]:
    if not isinstance(found, dict):
        return ["refused" if found else "", "", ""]
    each = found.get(layer)
    if each is None:
        return ["", "", ""]
    other = abs(each["predicted"] - each["said"]) > 0.005
    return [f"{each['said']:.2f}", f"{each['measured']:.2f}", f"{each['predicted']:.2f}" if other else ""]


def main(args: list[str] | None = None) -> int:
    """Measure the hosts and return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for previous_token_hosts.json and .md")
    parser.add_argument("--only", nargs="+", help="names of hosts; with --output the others keep their rows")
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    rows: dict[str, dict[str, object]] = {}
    if given.output and given.only and (given.output / "previous_token_hosts.json").exists():
        rows = json.loads((given.output / "previous_token_hosts.json").read_text(encoding="utf-8"))["hosts"]
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
    versions = installed_versions()
    for name in given.only or hosts():
        rows[name] = in_a_fork(partial(examined, name))
        print(name, json.dumps(rows[name]), flush=True)
        if given.output:
            text = ",\n".join(f"{json.dumps(host)}: {json.dumps(row)}" for host, row in rows.items())
            whole = f'{{"versions": {json.dumps(versions)}, "hosts": {{\n{text}\n}}}}\n'
            (given.output / "previous_token_hosts.json").write_text(whole, encoding="utf-8")
            (given.output / "previous_token_hosts.md").write_text(page(rows, versions), encoding="utf-8")
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    raise SystemExit(main())
