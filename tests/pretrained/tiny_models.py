"""Four tiny models in place of the shipped ones, with model cards."""

from __future__ import annotations

from pathlib import Path

import glassformer
from glassformer import pretrained as models
from glassformer.families.sidecars import JobInfo
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.interpret import models as tiny

CARD = """---
task: {task}
license: CC BY 2.0
languages: [{languages}]
parameters: {parameters}
---
# {name}
"""


def save_models(root: Path) -> Path:
    """Write each model into a folder of its own."""
    tokenizer = train_tokenizer(
        tiny.LINES, TokenizerPlan(kind="word", vocab_size=60, tags=(">>de<<", ">>en<<", ">>ko<<"))
    )
    translator = tiny.tiny_bundle(
        "original", src_vocab_size=tokenizer.vocab_size, tgt_vocab_size=tokenizer.vocab_size
    )
    translator.tokenizer, translator.family = tokenizer, None
    special_ids = sorted(tokenizer.special_ids - {tokenizer.eos_id})  # it would generate nothing else
    translator.generation = {"decoder_start_token_id": tokenizer.eos_id, "suppress_tokens": special_ids}
    job = {"job": "translate", "unit": "sentence", "languages": ["de", "en", "ko"], "to": None}
    translator.job = JobInfo.from_dict(job)
    bundles = {
        "pocket": (translator, "Translates.", "de, en, ko"),
        "pocket-lm": (tiny.tiny_bundle("gpt2", max_len=128), "Writes.", "en"),
        "pocket-digits": (tiny.tiny_bundle("vit"), "Reads digits.", ""),
        "pocket-series": (tiny.tiny_bundle("patchtst"), "Forecasts.", ""),
    }
    for name, (bundle, task, languages) in bundles.items():
        folder = glassformer.save(bundle, root / name, dtype="int8" if name == "pocket" else None)
        count = sum(p.numel() for p in bundle.model.parameters())
        card = CARD.format(name=name, task=task, languages=languages, parameters=count)
        (folder / models.CARD).write_text(card)
    return root
