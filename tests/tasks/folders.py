"""Folders with tiny random models of transformers and a tokenizer of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.families import harness
from tests.families.cases import _BERT

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz"]
WORDS = "the cat dog sat on mat glass is where and ran".split()
VOCABULARY = [*SPECIAL, *".,?", *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
TEXTS = [
    "the cat sat on the mat.",
    "a dog ran",
    "",
    "where is the glass, and where is the dog? the glass is on the mat and the dog sat on a cat.",
    "zebras",
    "the the the the the the the",
]


def write_tokenizer(folder: Path, **config: Any) -> None:
    """Write a WordPiece tokenizer of words and letters into a folder."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 60, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def bert(name: str, folder: Path, **settings: Any) -> tuple[Any, Path]:
    """A random model of transformers and its folder, which has a tokenizer."""
    sizes = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 60, "pad_token_id": 0}
    model = harness.reference(name, {**_BERT, **sizes, **settings})
    harness.save_reference(model, folder)
    write_tokenizer(folder)
    return model, folder
