"""Do the models of other libraries begin as they should?

    python -m benchmarks.begins --output benchmarks/results --resume
    python -m benchmarks.begins --libraries timm --only swin   # a look at a few

The models of the conformance table with their own scales, and those of other libraries in
``benchmarks.healthy_models``, each checked by ``structured_init.testing`` in a process of its own. Nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.conformance import in_a_fork
from benchmarks.conformance_models import LIBRARIES, Build, installed_versions, transformers_with_heads
from benchmarks.healthy_models import LIBRARIES as HEALTHY
from benchmarks.healthy_models import models_of
from structured_init.checks.builds import Filled, unwritten
from structured_init.testing import check_initialized

CONFORMANCE = Path(__file__).parent / "results/conformance.json"
LARGE = 130e6  # parameters from which on a model is left out
TIME_LIMIT = 300  # seconds for one model
ELSEWHERE = ("timm", "open_clip_torch", "small libraries")  # healthy models: in the table, or of many libraries


def of_library(name: str) -> dict[str, Build]:
    """Return models of a library: of the conformance table, the healthy ones beside mutants, and what was reported."""
    table = LIBRARIES[name]() if name in LIBRARIES else {}
    return {**table, **models_of(name), **(reported_of_fla() if name == "flash-linear-attention" else {})}


def reported_of_fla() -> dict[str, Build]:
    """Return models of fla whose own method was reported to leave parameters bare."""
    from fla import models

    small = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 64}
    kinds = {"RWKV6": {**small, "num_heads": 2}, "RWKV7": {**small, "head_dim": 32}}

    def build(kind: str) -> tuple[nn.Module, object]:
        return getattr(models, f"{kind}ForCausalLM")(getattr(models, f"{kind}Config")(**kinds[kind])), None

    return {kind: partial(build, kind) for kind in kinds}


def of_torch() -> dict[str, Build]:
    """Return torch's own transformer."""
    tokens = torch.randn(2, 12, 32)
    sizes = {"d_model": 32, "nhead": 4, "num_encoder_layers": 3, "num_decoder_layers": 3, "dim_feedforward": 64}
    return {"Transformer": lambda: (nn.Transformer(**sizes, batch_first=True), (tokens, tokens))}


MODELS: dict[str, Callable[[], dict[str, Build]]] = {
    "torch": of_torch,
    **LIBRARIES,
    "transformers": transformers_with_heads,
    **{name: partial(of_library, name) for name in HEALTHY if name not in ELSEWHERE},
}


# What reading the library gave: a part of "model check tensor" → verdict. Anything else is not called a defect.
READ = {
    r"/mt5 loss": "defect: the output is tied to embeddings of σ 1 and not scaled by 1/√d_model as T5's is",
    r"/cpmant loss": "defect: `init_std` is 1 (`configuration_cpmant.py:65`), and no matrix is divided by √fan_in",
    r"/funnel loss": "defect: embeddings of σ 1 (`modeling_funnel.py:701`) are tied to the output",
    r"/((conditional_|deformable_)?detr|table-transformer) own backbone": "defect: where a checkpoint lacks the "
    "backbone, its convolutions have σ 0.02 rather than timm's own",
    r"/fastspeech2_conformer_with_hifigan depth": "intended: HiFi-GAN draws with σ 0.01 "
    "(`configuration_fastspeech2_conformer.py:316`), so its upsampling begins small",
    r"/(t5|longt5|umt5|switch_transformers) loss": "intended: embeddings of σ 1, and an output tied to them and "
    "scaled by 1/√d_model (`modeling_t5.py:1045`): logits of σ 1, and a loss of ln V + ½",
    r"/gradium_phonon_tts loss": "ours: latents of width 32 were taken for words, since the model embeds 32 speakers",
    r"/sam3_vision_model depth": "intended: the four are levels of a pyramid, side by side (`modeling_sam3.py:1060`)",
    r"/csatv2 meta": "defect: `init_weights` resets what has a `reset_parameters`, and `GlobalResponseNorm` has none "
    "(`layers/grn.py:41`)",
    r"/(levit_\w+|efficientvit_m0|tiny_vit_5m_224) own": "defect: `init_weights`, which is for the time after "
    "`to_empty`, calls each `reset_parameters`, so norms that the model begins at zero (`bn_weight_init=0`) are one",
    r"/vitamin_small_224 own": "defect: `init_weights` resets the convolutions of the stem, which `Stem` draws by "
    "`_init_conv` while it is built (`models/vitamin.py:95`)",
    r"/(nest_tiny|resnest14d|skresne\w+) ": "no method: `init_weights` writes convolutions and linear layers, no norms",
    r"/samvit_base_patch16 meta": "no method: the model has no `init_weights`",
    r"torch/Transformer copies": "defect: layers are copies of one (`transformer.py:1201`), and `_reset_parameters` "
    "draws matrices alone (line 313), so the biases of all layers are equal",
    r"diffusers/SD3 stuck": "defect: the text's output of the last block is left out (`attention_processor.py:1494`), "
    "so nothing depends on its queries, `add_q_proj` (line 260)",
    r"monai/(ViT|UNETR) unused": "defect: the norm of cross-attention is built (`transformerblock.py:97`) where there "
    "is no cross-attention",
    r"scale .*single numbers reach 2 from the mean": "defect: timm's `trunc_normal_` is cut at ±2, which is 100 σ, "
    "and gives that bound five times in 10⁸ (`layers/weight_init.py:50`); torch's did not",
    r"/(haloregnetz_b|mobilevit_xxs|regnetz\w+) odd": "intended: the last norm of a block begins at zero where it has "
    "a shortcut (`byobnet.py:493`), and the first of a stage has none",
    r"scale .*σ (1e-10|9\.\de-11)": "defect: σ is 10⁻¹⁰ by default in its configuration",
    r"/mnasnet\w+ loss": "defect: the head is drawn by its fan-out (`mnasnet.py:155`), so logits are far apart",
    r"/swinv2_\w+ meta": "intended: a mask, no weight; timm's `reinit_non_persistent_buffers` writes it",
    # defects
    r"litgpt/Gemma-2b loss": "defect: norms of Gemma add 1 to a weight (`litgpt/model.py:1321`) that begins at 1, not "
    "at 0 (line 1310), so they double what comes in",
    r"open_clip_torch/coca_base memory text_decoder\.text_projection": "defect: `torch.empty` "
    "(`open_clip/transformer.py:1292`); nothing calls `init_parameters` (line 1294), which reads a "
    "`self.transformer` that is not there",
    r"/aimv2_huge_patch14_224 scale \S+mlp\.fc1_g\.weight: σ": "defect: the gate's weight is near zero because its "
    "bias is one (`layers/mlp.py:152`); AIM-v2 has no bias, so that every MLP begins shut",
    r"/mvit_v2_s stuck blocks\.15\.attn\.": "defect: the head reads the class token (`mvit.py:563`), whose query is "
    "not pooled (line 87) and has no relative position (line 179), so the last block's are idle",
    r"/rvt RvT stuck transformer\.layers\.2\.0\.to_q\.conv": "defect: the head reads the class token (`rvt.py:211`), "
    "whose query is not convolved (line 68), so nothing depends on the last block's",
    r"/(audioflamingo3|musicflamingo|moss_transcribe_diarize|qwen2_audio|voxtral)(_encoder|_audio)? frozen "
    r"(model\.audio_tower\.)?embed_positions": "defect: positions are frozen, and noise; Whisper, whose encoder this "
    "is, writes sinusoids into them (`modeling_whisper.py:530`)",
    r"/(bamba|falcon_h1|granitemoehybrid) step model\.layers\.0\.mamba\.dt_bias": "defect: Δ's bias is one "
    "(`modeling_bamba.py:922`); Mamba-2, from which the layer names other differences (line 591), draws it "
    "(`modeling_mamba2.py:457`)",
    r"/jamba step \S+dt_proj\.bias": "defect: Δ's bias is zero like any linear layer's (`modeling_utils.py:2324`); "
    "Mamba, whose mixer this is, draws it (`modeling_mamba.py:356`)",
    r"/(lara_mini|minicpm_ocr|minicpmv4_[67]|qwen3_5(_moe)?_text|qwen3_next) step \S+linear_attn\.dt_bias": "defect: "
    "Δ's bias is one (`modeling_qwen3_next.py:959`), where a comment says that `_init_weights` copies a draw into it "
    "(line 617)",
    r"/(big_bird|fnet) unused \w+\.pooler\.": "defect: a language model builds a pooler that it does not read "
    "(`modeling_big_bird.py:1994`, `modeling_fnet.py:612`); BERT leaves it out (`modeling_bert.py:840`)",
    r"/clap embeddings text_model\.embeddings\.\w+\.weight: the row": "defect: rows of padding are zeroed by the base "
    "class (`modeling_utils.py:2335`), and drawn over (`modeling_clap.py:1260`, 1268)",
    r"/(d_fine|deimv2|rt_detr|rt_detr_v2) embeddings denoising_class_embed\.weight: the row": "defect: the row of "
    "padding is zeroed by the base class (`modeling_utils.py:2335`), and drawn over (`modeling_rt_detr.py:1062`)",
    r"/(modernbert|modernbert-decoder|modernvbert|pe_audio) embeddings \S*tok_embeddings\.weight: the row": "defect: "
    "the row of padding is zeroed by the base class (`modeling_utils.py:2335`), and drawn over "
    "(`modeling_modernbert.py:367`)",
    r"/markuplm unused embeddings\.xpath_embeddings\.xpath_unitseq2_embeddings": "defect: the layer is built "
    "(`modeling_markuplm.py:55`) and called nowhere",
    r"/sam(_hq)?_vision_model scale vision_encoder\.patch_embed\.projection\.weight, ": "defect: σ is 10⁻¹⁰ by default "
    "in its configuration",
    r"/swiftformer stuck \S+attn\.w_g": "defect: a softmax over one number (`modeling_swiftformer.py:183`) is one, "
    "whatever `w_g` is; timm normalizes over tokens (`models/swiftformer.py:183`)",
    r"/udop scale (decoder\.embed_patches|patch_embed)\.proj\.weight: σ": "defect: of patches σ is the factor itself, "
    "1 (`modeling_udop.py:755`), which the other matrices multiply by 1/√width",
    r"/xclip scale prompts_generator\.decoder\.\d\.": "defect: without an `initializer_range`, σ is the factor 1 of "
    "`initializer_factor` (`modeling_utils.py:2315`, `configuration_x_clip.py:152`)",
    r"/nystromformer padding": "defect: the convolution of values takes no mask (`modeling_nystromformer.py:212`); the "
    "authors' own does (`attention_nystrom.py` of mlpen/Nystromformer)",
    r"/yoso padding": "defect: the mask of zeros and ones (`modeling_yoso.py:683`) is taken for one of zeros and −10⁴ "
    "(line 356), so that no token is left out",
    # intended
    r"/(axk2|dots3_note_text|hy_v4|hy_v4_vl_text) unused (model\.)?layers\.0\.self_attn\.indexer\.": "intended: an "
    "indexer chooses tokens by their places (`modeling_axk2.py:278`), through which no gradient goes",
    r"/layoutlm unused layoutlm\.pooler\.": "intended: every LayoutLM has a pooler (`modeling_layoutlm.py:419`), and a "
    "masked language model reads tokens alone (line 620)",
    r"/(clip|metaclip_2) unused vision_model\.post_layernorm\.": "intended: the classifier averages patches "
    "(`modeling_clip.py:991`), and this norm is for the class token (line 641)",
    r"/siglip unused vision_model\.head\.": "intended: the classifier averages patches (`modeling_siglip.py:904`) in "
    "place of the tower's own pooling",
    r"/blip unused text_model\.encoder\.layer\.0\.crossattention\.": "intended: cross-attention is for "
    "`get_multimodal_features` (`modeling_blip.py:667`), which `forward` does not call",
    r"/blt frozen model\.patcher\.": "intended: the patcher is a model of its own, and frozen (`modeling_blt.py:1166`)",
    r"/idefics frozen ": "intended: text and vision are frozen by default (`configuration_idefics.py:149`, 152)",
    r"/canine padding": "intended: a strided convolution makes one of four characters (`modeling_canine.py:204`), "
    "padding or not",
    r"/convbert padding": "intended: convolutions beside attention take no mask (`modeling_convbert.py:191`, 209)",
    r"/fastspeech2_conformer(_with_hifigan)? padding": "intended: feed-forward layers are convolutions without a mask "
    "(`modeling_fastspeech2_conformer.py:678`)",
    r"/cpmant causal": "intended: every token is context, which all see (`modeling_cpmant.py:626`, 565)",
    r"/cpmant padding": "intended: padding is the token 0, at the left (`modeling_cpmant.py:611`); the mask is a "
    "dummy (line 717)",
    r"/hiera norms \S+: begins at 0\.02; biases of norms": "intended: biases begin at σ, those of linear layers too "
    "(`modeling_hiera.py:776`, 779)",
    r"/neomme embeddings model\.value_embeddings\.weight": "intended: `_init_weights` writes zeros, as into all that "
    "is added to the residual (`modeling_neomme.py:460`)",
    # of the small size, of the batch, or of a check
    r"/fastspeech2_conformer(_with_hifigan)? unused (model\.)?duration_predictor\.": "ours: the check evaluates, where "
    "durations are rounded (`modeling_fastspeech2_conformer.py:183`); training takes them as they are",
    r"/(fuyu|inkling_mm_model|visual_bert) unused (model\.vision_embed_tokens|audio_tower|\S+\.visual_)": "ours: the "
    "batch has words alone, and these layers wait for images or sound",
    r"/higgs_audio_v2 (stuck model\.layers\.0\.audio_mlp|unused model\.embed_audio_tokens)": "ours: the batch has no "
    "token of sound, for which these layers are (`modeling_higgs_audio_v2.py:283`)",
    r"/(gradium_phonon_tts|pocket_tts) (stuck bos_latent|unused audio_prompt_proj)": "ours: the batch has neither the "
    "token at which sound begins (`modeling_pocket_tts.py:559`) nor a voice (line 561)",
    r"/(led|longformer) unused \S+\.query_global\.weight": "ours: the batch marks no token as global "
    "(`modeling_longformer.py:1175`)",
    r"/mra stuck \S+attention\.output\.dense\.weight": "ours: without its CUDA kernel attention gives zeros "
    "(`modeling_mra.py:363`)",
    r"/omdet-turbo scale encoder\.encoder\.0\.layers\.0\.fc2\.bias: σ": "ours: its bound is 1/√outputs "
    "(`modeling_omdet_turbo.py:994`): of 2,048 inputs there are 256 at full size, and 32 here",
    r"/rf_detr (seeds|copies|scale) decoder\.layers\.0\S*\.cross_attn\.sampling_offsets\.bias": "ours: a ring of "
    "offsets (`modeling_rf_detr.py:1078`) that the check took for draws",
    r"/roc_bert stuck roc_bert\.embeddings\.pronunciation_embed": "ours: without sounds and shapes all are the token "
    "of padding, 0 (`modeling_roc_bert.py:153`, 158)",
    r"/t5gemma2 (embeddings|stuck) \S+\.eoi_embedding": "ours: one vector, for the end of an image "
    "(`modeling_t5gemma2.py:625`), which the batch has not; the check took it for a table",
}
SECTIONS = {
    "defect": "Defects",
    "intended": "Intended",
    "ours": "Of the small size, the batch or the check, not of the library",
    "no method": "Models without a method that writes all weights",
    "unconfirmed": "Unconfirmed",
}


def row_of(build: Build) -> dict[str, object]:
    """Check a model and return what fails, a list of lines per check, and which checks were left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with contextlib.suppress(Exception), torch.device("meta"):
                size = sum(parameter.numel() for parameter in build()[0].parameters())
                if size > LARGE:
                    return {"unbuilt": f"{size / 1e6:.0f} million parameters"}
            model, batch = build()
        except Exception as error:
            return {"unbuilt": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:120]}
        place = f"{type(model).__module__}.{type(model).__name__}"
        del model

        def fresh() -> nn.Module:
            return build()[0]

        checked = check_initialized(fresh, batch)
        row = {
            "class": place,
            "failures": {each.name: [line[:240] for line in each.failures] for each in checked.checks if each.failures},
            "left out": {each.name: each.left_out[:80] for each in checked.checks if each.left_out},
        }
        if row["failures"]:
            model = fresh()
            names = {first_name(line) for lines in row["failures"].values() for line in lines}
            known = names & dict(_all(model)).keys()
            bare = bare_after_loading(model)
            row["places"] = {name: [created(model, name), written(model, name), name in bare] for name in known}
            row["drawn"] = drawn(model)
    return row


def first_name(line: str) -> str:
    """Return the tensor that a line names first."""
    return re.split(", |: ", line)[0]


def _all(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))


def created(model: nn.Module, name: str) -> str:
    """Return file and line of the library where a tensor, or else the torch layer that holds it, is created."""
    while name:
        name, _, key = name.rpartition(".")
        if name.endswith("parametrizations") or key == "parametrizations":
            continue
        for cls in type(model.get_submodule(name)).__mro__:
            if cls.__module__.startswith(("torch.", "builtins")):
                continue
            lines, first = inspect.getsourcelines(cls)
            text = rf"self\.{key}\b[^=(]*=[^=]|register_(parameter|buffer)\(\s*[\"']{key}[\"']"
            for number, line in enumerate(lines, first):
                if re.search(text, line):
                    return f"{_file(cls)}:{number}"
    return ""


def written(model: nn.Module, name: str) -> str:
    """Return file and line of the method by which the part of a model that holds a tensor writes its weights."""
    while True:
        name = name.rpartition(".")[0]
        for method in ("_init_weights", "init_weights"):
            if found := getattr(type(model.get_submodule(name)), method, None):
                found = inspect.unwrap(found)
                return f"{_file(found)}:{inspect.getsourcelines(found)[1]}"
        if not name:
            return ""


def drawn(model: nn.Module) -> str:
    """Return file and line where a model without ``init_weights`` draws its weights while it is built."""
    if hasattr(model, "init_weights"):
        return ""
    lines, first = inspect.getsourcelines(type(model).__init__)
    calls = (
        number
        for number, line in enumerate(lines, first)
        if re.search(r"apply\(|self\._init\w*\(|in self\.named_modules\(|efficientnet_init_weights\(", line)
    )
    return next((f"{_file(type(model))}:{number}" for number in calls), "")


def _file(thing: type | Callable) -> str:
    return f"{thing.__module__.replace('.', '/')}.py"


def bare_after_loading(model: nn.Module) -> list[str]:
    """Return tensors of a model of transformers that ``from_pretrained`` leaves bare where a checkpoint lacks them."""
    if not hasattr(type(model), "from_pretrained") or not hasattr(model, "initialize_weights"):
        return []
    with Filled():
        loaded = type(model).from_pretrained(None, config=model.config, state_dict={})
    return list(unwritten(loaded))


def verdict(key: str, check: str, line: str, bare: bool, drawn: str) -> str:
    """Return what reading the library's code gave, else whether ``from_pretrained`` confirms a finding."""
    for pattern, said in READ.items():
        if re.search(pattern, f"{key} {check} {line}"):
            return said
    if drawn and "reset_parameters()" in line:
        return f"no method: all is drawn while the model is built, at `{_at(drawn)}`"
    return "defect: bare memory where a checkpoint lacks it" if bare else "unconfirmed"


def found(rows: dict[str, dict]) -> list[tuple[str, ...]]:
    """Return a line per model, check and method: model, check, first tensor and what, created, written, verdict."""
    before = [tuple(line) for row in rows.values() for line in row.get("found", ())]
    lines: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for key, row in sorted(rows.items()):
        for check, failures in row.get("failures", {}).items():
            for line in failures:
                made, writes, bare = row["places"].get(first_name(line), ("", "", False))
                group = (key, check, writes, verdict(key, check, line, bare, row.get("drawn", "")))
                lines.setdefault(group, []).append((line, made))
    return before + [
        (key, check, _short(all_[0][0]) + (f"; {len(all_) - 1} others" if len(all_) > 1 else ""), _merged(all_), *rest)
        for (key, check, *rest), all_ in lines.items()
    ]


def _merged(lines: list[tuple[str, str]]) -> str:
    """Return ``file:1, 2, 3`` for places in one file; of several files those of the first."""
    first = lines[0][1].rpartition(":")[0]
    numbers = sorted({int(made.rpartition(":")[2]) for _, made in lines if made.startswith(f"{first}:")})
    return f"{first}:{', '.join(map(str, numbers[:4]))}{' …' if len(numbers) > 4 else ''}" if first else ""


def _short(line: str) -> str:
    for long, short in (
        (" numbers were not written by initialize_weights() after to_empty()", " not written"),
        (" numbers were not written by init_weights() after to_empty()", " not written"),
        (" numbers were not written by reset_parameters() after to_empty()", " not written"),
        ("; a fresh model has ", "; fresh: "),
    ):
        line = line.replace(long, short)
    return line.replace("|", "/")[:130]


def page(rows: dict[str, dict], versions: dict[str, str]) -> str:
    """Return the findings as a page of Markdown."""
    checked = {key: row for key, row in rows.items() if "failures" in row}
    table = [key for key in in_the_table() if key.partition("/")[0] in ("timm", "transformers")]
    used = {"torch", *(key.partition("/")[0] for key in rows)}
    named = ", ".join(f"{name} {versions[name]}" for name in versions if name in used)
    lines = found(rows)
    defects = [each for each in lines if each[-1].startswith("defect")]
    head = [
        "# Do models of other libraries begin as they should?",
        "",
        f"{len(checked)} models of {named} were checked by",
        "`structured_init.testing`, small and with their libraries' own scales; "
        f"{sum(not row['failures'] for row in checked.values())} pass every",
        f"check. {len({each[0] for each in defects})} models have {len(defects)} true defects, "
        f"{sum(each[-1] == 'unconfirmed' for each in lines)} of the findings are unconfirmed.",
        f"{len({each[0] for each in lines if each[-1].startswith('no method')})} more begin "
        "without a method that writes all weights.",
        f"Of the {len(table)} models of timm and transformers in the [conformance table](conformance.md) that have "
        f"softmax attention, {len(checked.keys() & set(table))} are among them.",
        "",
        "`python -m benchmarks.begins --resume --output benchmarks/results`. A tensor is *created* in the line that is",
        "named, and should be *written* by the method that begins at the other. A defect of the check `meta` is",
        "confirmed by `from_pretrained`, without weights and with memory filled with NaN: it stays NaN. So it does",
        "where a checkpoint lacks the tensor. The rest was read in the code, but for what is unconfirmed.",
        "",
    ]
    for said, title in SECTIONS.items():
        some = [each for each in lines if each[-1].startswith(said)]
        if not some:
            continue
        head += [f"## {title}", "", "| model | check | tensor | created | written | |", "|---|---|---|---|---|---|"]
        head += [
            f"| {key} | {check} | {text} | {_at(made)} | {_at(writes)} | {why.partition(': ')[2]} |"
            for key, check, text, made, writes, why in some
        ] + [""]
    out = [f"{key.partition('/')[2]} ({why})"[:70] for key, why in left(rows).items()]
    return "\n".join([*head, "## Not checked", "", f"{len(out)} models: {'; '.join(out)}."]) + "\n"


def left(rows: dict[str, dict]) -> dict[str, str]:
    """Return the models that could not be checked, and why."""
    return {key: row.get("unbuilt") or row["failed"] for key, row in rows.items() if "failures" not in row}


def _at(place: str) -> str:
    return re.sub(r"^transformers/(models/\w+/)?|^timm/", "", place)


def main(args: list[str] | None = None) -> int:
    """Check the models and return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=Path("build/begins.json"), help="what is kept between runs")
    parser.add_argument("--output", type=Path, help="folder for begins.json and begins.md")
    parser.add_argument("--libraries", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of models' names")
    parser.add_argument("--resume", action="store_true", help="leave out models that were checked")
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    versions = installed_versions(MODELS)
    rows = json.loads(given.rows.read_text(encoding="utf-8")) if given.rows.exists() else {}
    if given.resume and given.output and (given.output / "begins.json").exists():
        rows = {**committed(given.output / "begins.json", versions), **rows}
    attending = in_the_table()
    for library in given.libraries:
        if library not in versions:
            print(f"{library} is not installed and left out", file=sys.stderr)
            continue
        try:
            models = MODELS[library]()
        except ImportError as error:
            print(f"{library} is left out: {error}", file=sys.stderr)
            continue
        row_of(models.get("bert", next(iter(models.values()))))  # imports once what every fork needs
        for name in sorted(models, key=lambda name: f"{library}/{name}" not in attending):
            build, key = models[name], f"{library}/{name}"
            done = given.resume and "failures" in rows.get(key, {})
            if done or not any(part in name for part in given.only):
                continue
            rows[key] = in_a_fork(lambda build=build: row_of(build), TIME_LIMIT)
            print(key, json.dumps(rows[key]), flush=True)
            given.rows.parent.mkdir(parents=True, exist_ok=True)
            given.rows.write_text(json.dumps(rows, indent=0), encoding="utf-8")
    if given.output:
        write(given.output, rows, versions)
    return 0


def in_the_table() -> list[str]:
    """Return the models of the conformance table that have softmax attention."""
    table = json.loads(CONFORMANCE.read_text(encoding="utf-8"))["libraries"]
    return [f"{library}/{row['name']}" for library, rows in table.items() for row in rows if row.get("layers")]


def committed(file: Path, versions: dict[str, str]) -> dict[str, dict]:
    """Return the rows of committed results that are of the same library's version; torch may be another one."""
    before = json.loads(file.read_text(encoding="utf-8"))
    ran = before["versions"].get("torch", versions["torch"])
    versions["torch"] = ran if versions["torch"] in ran else f"{ran} and {versions['torch']}"
    same = {name for name in versions if versions[name] == before["versions"].get(name)}
    rows: dict[str, dict] = {key: {"failures": {}} for key in before["passed"] if key.partition("/")[0] in same}
    rows |= {key: {"unbuilt": why} for key, why in before["left"].items() if key.partition("/")[0] in same}
    for key, *line in before["findings"]:
        if key.partition("/")[0] in same:
            rows.setdefault(key, {"failures": {"": []}, "found": []})["found"].append([key, *line])
    return rows


def write(folder: Path, rows: dict[str, dict], versions: dict[str, str]) -> None:
    """Write the page, and as JSON its findings and the names of models that pass."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "begins.md").write_text(page(rows, versions), encoding="utf-8")
    findings = ",\n".join(json.dumps(each, ensure_ascii=False) for each in found(rows))
    passed = json.dumps([key for key, row in rows.items() if row.get("failures") == {}])
    text = f'{{"versions": {json.dumps(versions)},\n"findings": [\n{findings}],\n"passed": {passed},\n'
    text += f'"left": {json.dumps(left(rows), ensure_ascii=False)}}}\n'
    (folder / "begins.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
