"""Four tiny models that stand for those which come with the package, with cards as they have them."""

from __future__ import annotations

from pathlib import Path

import glassformer
from glassformer import pretrained as models
from glassformer.families.sidecars import JobInfo
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.interpret import models as tiny

CARD = """---
does: {does}
licence: CC BY 2.0
languages: [{languages}]
parameters: {parameters}
---
# {name}
"""


def make(here: Path) -> Path:
    """The folder that they lie in, a folder each."""
    cut = train_tokenizer(
        tiny.LINES, TokenizerPlan(kind="word", vocab_size=60, tags=(">>de<<", ">>en<<", ">>ko<<"))
    )
    translator = tiny.bundle("original", src_vocab_size=cut.vocab_size, tgt_vocab_size=cut.vocab_size)
    translator.tokenizer, translator.family = cut, None
    marks = sorted(cut.special_ids - {cut.eos_id})  # it would write nothing else
    translator.generation = {"decoder_start_token_id": cut.eos_id, "suppress_tokens": marks}
    about = {"job": "translate", "unit": "sentence", "languages": ["de", "en", "ko"], "to": None}
    translator.job = JobInfo.from_dict(about)
    bundles = {
        "pocket": (translator, "Translates.", "de, en, ko"),
        "pocket-lm": (tiny.bundle("gpt2", max_len=128), "Writes.", "en"),
        "pocket-digits": (tiny.bundle("vit"), "Reads digits.", ""),
        "pocket-series": (tiny.bundle("patchtst"), "Forecasts.", ""),
    }
    for name, (bundle, does, languages) in bundles.items():
        folder = glassformer.save(bundle, here / name, dtype="int8" if name == "pocket" else None)
        count = sum(one.numel() for one in bundle.model.parameters())
        told = CARD.format(name=name, does=does, languages=languages, parameters=count)
        (folder / models.CARD).write_text(told)
    return here
