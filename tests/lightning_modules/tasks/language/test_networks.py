from __future__ import annotations

import pytest
import torch
from transformers import GPT2LMHeadModel

from lightning_modules.networks.transformers_network import number_of_positions, transformers_network
from structured_init import StructuredInitError

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("name", ["gpt2", "GPT2LMHeadModel", "GPT2Config", "GPT2Model"])
def test_a_model_is_found_by_any_of_its_names(name):
    assert isinstance(transformers_network(name, **SMALL), GPT2LMHeadModel)


def test_sizes_come_from_the_data_and_fields_win():
    network = transformers_network("gpt2", tokenizer_size=30, block_size=8, **SMALL)
    assert (network.transformer.wte.num_embeddings, network.transformer.wpe.num_embeddings) == (30, 8)
    wide = transformers_network("gpt2", tokenizer_size=30, block_size=8, vocab_size=32, n_positions=64, **SMALL)
    assert (wide.transformer.wte.num_embeddings, wide.transformer.wpe.num_embeddings) == (32, 64)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_no_token_is_a_padding_token_whose_embedding_would_stay_zero(name):
    network = transformers_network(
        name, purpose="masked" if name == "bert" else "causal", intermediate_size=16, **SMALL
    )
    assert network.get_input_embeddings().padding_idx is None


def test_an_encoder_with_a_causal_head_does_not_see_the_tokens_it_predicts():
    network = transformers_network("bert", tokenizer_size=9, block_size=6, intermediate_size=16, **SMALL).eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = torch.tensor([[1, 2, 3, 4, 5, 7]])
    torch.testing.assert_close(network(ids).logits[:, :5], network(changed).logits[:, :5])


def test_roberta_has_positions_for_the_whole_block_behind_its_padding():
    fields = {"pad_token_id": 3, "intermediate_size": 16, **SMALL}
    network = transformers_network("roberta", purpose="masked", tokenizer_size=9, block_size=6, **fields)
    assert number_of_positions(network) == 6
    assert network(torch.tensor([[4, 5, 6, 7, 8, 4]])).logits.shape == (1, 6, 9)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("gpt22", {}, "unknown network 'gpt22': did you mean 'gpt2'"),
        ("gpt2", {"n_layr": 2}, "network 'gpt2' takes no argument 'n_layr': did you mean 'n_layer'"),
        ("gpt2", {"n_positions": 8, "block_size": 9}, "a block of 9 tokens is longer than the 8 positions of 'gpt2'"),
        ("gpt2", {"vocab_size": 10, "tokenizer_size": 11}, "tokenizer has 11 tokens, the embedding of 'gpt2' 10 rows"),
        ("roberta", {"purpose": "masked"}, "needs network_args.pad_token_id: its positions start after it"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_in_one_line(name, arguments, message):
    with pytest.raises(StructuredInitError, match=message) as error:
        transformers_network(name, **SMALL, **arguments)
    assert "\n" not in str(error.value)
