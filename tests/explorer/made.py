"""A model of every kind that the explorer shows, in folders of their own."""

from __future__ import annotations

from pathlib import Path

import glassformer
from glassformer.api import Bundle
from tests.trace import models

KINDS = {
    "translator": "original",
    "writer": "gpt2",
    "rotary": "llama",
    "masked": "bert",
    "sentences": "sentence",
    "pictures": "vit",
    "series": "patchtst",
}


def make(folder: Path) -> dict[str, Path]:
    """The models, by name."""
    made: dict[str, Bundle] = {name: models.bundle(family) for name, family in KINDS.items()}
    made["labels"] = models.classifier()
    made["translator"].family = None  # the paper's model has no published layout
    return {name: glassformer.save(bundle, folder / name) for name, bundle in made.items()}
