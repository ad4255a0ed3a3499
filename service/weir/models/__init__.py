"""Model families: HF config to ModelSpec, one dense decoder, weights, tokenizer."""
