"""Text: corpora, tokenizers, packing, and the datamodules that make batches of them."""
