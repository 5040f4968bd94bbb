"""Any text model of transformers from its name and the fields of its config."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from structured_init.hosts.positions import token_layouts
from structured_init.util.arguments import check_takes
from structured_init.util.errors import StructuredInitError, nearest, one_line

Purpose = Literal["causal", "masked", "backbone"]
BUILDERS: dict[Purpose, tuple[Any, dict[str, str]]] = {
    "causal": (AutoModelForCausalLM, dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)),
    "masked": (AutoModelForMaskedLM, dict(MODEL_FOR_MASKED_LM_MAPPING_NAMES)),
    "backbone": (AutoModel, {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_MASKED_LM_MAPPING_NAMES}),
}
# Their first token has the row behind the padding token's number, whatever that is.
POSITIONS_BEHIND_PADDING = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm"})


def transformers_network(
    name: str,
    *,
    purpose: Purpose = "causal",
    tokenizer_size: int = 256,
    block_size: int = 128,
    **fields: Any,
) -> PreTrainedModel:
    """Build a model of transformers, with fresh weights from the global random state.

    Args:
        name: a model type (``gpt2``, ``llama``, ``bert``), or one of its classes (``GPT2LMHeadModel``, ``GPT2Config``).
        purpose: ``causal`` or ``masked`` with a head over the vocabulary, or the ``backbone`` alone, which gives hidden
            states.
        tokenizer_size: number of tokens; the rows of the embedding, unless the fields give a larger ``vocab_size``.
        block_size: the longest input; the number of positions, unless the fields give a larger one.
        fields: of the config class. GPT-2 and Llama also share names: ``hidden_size``, ``num_hidden_layers``,
            ``num_attention_heads``. Special tokens are nobody's unless given: a padding row would get no gradient.

    Raises:
        StructuredInitError: unknown model or field; sizes that do not divide; an embedding or positions too small.
    """
    kind = model_type(name, purpose)
    config_class = CONFIG_MAPPING[kind]
    aliases = config_class.attribute_map
    known = {*(field.name for field in dataclasses.fields(config_class)), *aliases, "attn_implementation"}
    check_takes(f"network '{kind}'", fields, known)
    behind = 0
    if kind in POSITIONS_BEHIND_PADDING:
        if fields.get("pad_token_id") is None:
            raise StructuredInitError(f"network '{kind}' needs network_args.pad_token_id: its positions start after it")
        behind = fields["pad_token_id"] + 1
    # What the data says and what a fresh model needs, of that which the fields leave open.
    defaults: dict[str, Any] = {"vocab_size": tokenizer_size, "max_position_embeddings": block_size + behind}
    defaults |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    if purpose == "causal" and kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        defaults["is_decoder"] = True  # else an encoder's causal head sees the tokens that it predicts
    given = {aliases.get(name, name) for name in fields}
    for name, value in defaults.items():
        if name in known and aliases.get(name, name) not in given:
            fields[name] = value
    try:
        network = BUILDERS[purpose][0].from_config(config_class(**fields))
    except (StrictDataclassError, ValueError) as error:
        raise StructuredInitError(f"network '{kind}': {one_line(error)}") from error
    network.config.use_cache = False  # keys and values of earlier tokens are never asked for again
    _check_sizes(network, kind, tokenizer_size, block_size)
    return network


def model_type(name: str, purpose: Purpose) -> str:
    """Return the model type of a name; refuse one of no model, or of none for the purpose, with the nearest."""
    known = BUILDERS[purpose][1]
    if name in known and name in CONFIG_MAPPING_NAMES:
        return name
    for kind, model_class in known.items():
        if name in (model_class, CONFIG_MAPPING_NAMES.get(kind), MODEL_MAPPING_NAMES.get(kind)):
            return kind
    if name in CONFIG_MAPPING_NAMES:
        raise StructuredInitError(
            f"transformers has no {purpose} model of '{name}': choose another network or objective"
        )
    raise StructuredInitError(f"unknown network '{name}': {nearest(name, known)}")


def number_of_positions(network: nn.Module) -> int | None:
    """Return how many tokens a model has positions for in a table; ``None`` where it has none."""
    tables = [tokens for tokens in token_layouts(network).values() if tokens.positions is not None]
    return min((tokens.positions.shape[-2] - tokens.first for tokens in tables), default=None)


def first_position(network: nn.Module) -> int:
    """Return the number that a model's first token has among its positions."""
    return next((tokens.first for tokens in token_layouts(network).values() if tokens.positions is not None), 0)


def _check_sizes(network: PreTrainedModel, kind: str, tokenizer_size: int, block_size: int) -> None:
    """Refuse what would fail, or read another row, in the middle of a step."""
    rows = network.get_input_embeddings().weight.shape[0]
    if rows < tokenizer_size:
        raise StructuredInitError(
            f"the tokenizer has {tokenizer_size} tokens, the embedding of '{kind}' {rows} rows: "
            "leave network_args.vocab_size to the data"
        )
    positions = number_of_positions(network)
    if positions is not None and positions < block_size:
        raise StructuredInitError(
            f"a block of {block_size} tokens is longer than the {positions} positions of '{kind}': shorten the data's "
            "block_size, or give network_args.max_position_embeddings"
        )
