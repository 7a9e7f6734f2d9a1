"""transformers loads a folder that we saved and generates the same text."""

from __future__ import annotations

import pytest
import torch

import glassformer
from glassformer.tokenization import load_tokenizer
from tests.export.randomized import randomize_parameters
from tests.tokenization import layouts

transformers = pytest.importorskip("transformers")

MAX_NEW_TOKENS = 12
TEXTS = ["the old captain sang", "the sea"]


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("marian", "marian"),
        ("t5", "unigram"),
        ("bart", "byte-level-roberta"),
        ("gpt2", "byte-level"),
        ("llama", "byte-fallback"),
        ("mistral", "byte-level"),
        ("falcon", "byte-level"),
    ],
)
def test_transformers_generates_from_our_folder(tmp_path, family, layout):
    """With its Auto classes and its own tokenizer."""
    layouts.LAYOUTS[layout](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    model = randomize_parameters(glassformer.tiny(family, vocab_size=tokenizer.vocab_size))
    generation = {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id or 0}
    has_source = getattr(model.spec, "start_id", None) is not None
    if has_source:
        generation["decoder_start_token_id"] = model.spec.start_id
    bundle = glassformer.Pipeline(model=model, tokenizer=tokenizer, family=family, generation=generation)
    folder = glassformer.save(bundle, tmp_path / "model")
    kind = transformers.AutoModelForSeq2SeqLM if has_source else transformers.AutoModelForCausalLM
    reference = kind.from_pretrained(folder).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    loaded = glassformer.load(folder)
    generate = loaded.translate if has_source else loaded.generate
    for text in TEXTS:
        ids = their_tokenizer(text, return_tensors="pt")["input_ids"]
        assert ids[0].tolist() == loaded.tokenizer.encode(text).ids
        mask = torch.ones_like(ids)
        output = reference.generate(
            ids, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=MAX_NEW_TOKENS
        )
        new = output[0, 1:] if has_source else output[0, ids.shape[1] :]
        (ours,) = generate([text], num_beams=1, max_new_tokens=MAX_NEW_TOKENS)
        theirs = loaded.tokenizer.decode(new.tolist())
        assert ours == (theirs.strip() if has_source else theirs), (ours, new)
