"""A folder we saved is read by the reference library as it is, which then writes what we write."""

from __future__ import annotations

import pytest
import torch

import glassformer
from glassformer.tokenization import load_tokenizer
from tests.export.shaken import shaken
from tests.tokenization import layouts

transformers = pytest.importorskip("transformers")

MOST = 12
TEXTS = ["the old captain sang", "the sea"]


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("marian", "two-sided"),
        ("t5", "unigram"),
        ("bart", "byte-level-marked"),
        ("gpt2", "byte-level"),
        ("llama", "byte-fallback"),
        ("mistral", "byte-level"),
        ("falcon", "byte-level"),
    ],
)
def test_the_reference_generates_from_our_folder(tmp_path, family, layout):
    """By its own classes, found by what config.json says, with its own reading of the tokenizer's files."""
    layouts.LAYOUTS[layout](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    model = shaken(glassformer.tiny(family, vocab_size=tokenizer.vocab_size))
    generation = {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id or 0}
    two = getattr(model.spec, "start_id", None) is not None
    if two:
        generation["decoder_start_token_id"] = model.spec.start_id
    bundle = glassformer.Pipeline(model=model, tokenizer=tokenizer, family=family, generation=generation)
    folder = glassformer.save(bundle, tmp_path / "model")
    kind = transformers.AutoModelForSeq2SeqLM if two else transformers.AutoModelForCausalLM
    reference = kind.from_pretrained(folder).eval()
    spelled = transformers.AutoTokenizer.from_pretrained(folder)
    loaded = glassformer.load(folder)
    write = loaded.translate if two else loaded.generate
    for text in TEXTS:
        ids = spelled(text, return_tensors="pt")["input_ids"]
        assert ids[0].tolist() == loaded.tokenizer.encode(text).ids
        mask = torch.ones_like(ids)
        told = reference.generate(ids, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=MOST)
        new = told[0, 1:] if two else told[0, ids.shape[1] :]
        (ours,) = write([text], num_beams=1, max_new_tokens=MOST)
        theirs = loaded.tokenizer.decode(new.tolist())
        assert ours == (theirs.strip() if two else theirs), (ours, new)
