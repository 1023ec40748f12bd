"""The prefill role: forming batches, computing prompts in chunks, sending pages, handing over."""
