"""A model of every kind that the explorer shows, and an input for each."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import glassformer
from glassformer.bundle import Bundle
from glassformer.pretrained import resolve_name
from tests.interpret import models

KINDS = {
    "translator": "original",
    "writer": "gpt2",
    "rotary": "llama",
    "masked": "bert",
    "sentences": "sentence",
    "pictures": "vit",
    "windows": "swin",
    "pairs": "clip",
    "questions": "vilt",
    "detector": "yolos",
    "queries": "detr",
    "prompts": "sam",
    "series": "patchtst",
}
DRAWERS = {"classes": "dit", "drawings": "pixart", "videos": "latte"}  # of classes, of texts, and of frames
CAPTIONS, QUESTIONS = "pocket-captioner", "pocket-vqa"
RUN = "reversing"  # a training run; its model reverses sequences of words

INPUTS: dict[str, dict[str, Any]] = {  # empty: the default example
    RUN: {"text": "red blue gold gold"},
    "writer": {"text": "the old captain sang"},
    "rotary": {"text": "the old captain sang"},
    "masked": {"text": "the [MASK] sat on the [MASK]."},
    "sentences": {"text": "the cat sat on the mat."},
    "labels": {"text": "the cat sat on the mat."},
    "pictures": {},
    "windows": {},
    "pairs": {},
    "questions": {"question": "where is the cat?"},
    "detector": {},
    "queries": {},
    CAPTIONS: {},
    "series": {},
}


def save_models(folder: Path) -> dict[str, Path]:
    """Save the models; return their folders by name."""
    bundles: dict[str, Bundle] = {name: models.tiny_bundle(family) for name, family in KINDS.items()}
    bundles["writer"] = models.tiny_bundle("gpt2", max_len=256)
    bundles |= {name: models.drawing_model(denoiser) for name, denoiser in DRAWERS.items()}
    bundles["codes"] = models.image_tokens_model()
    bundles["labels"] = models.classifier()
    bundles["translator"].family = None  # the paper's model has no published layout
    folders = {name: glassformer.save(bundle, folder / name) for name, bundle in bundles.items()}
    shipped = {name: resolve_name(name) for name in (CAPTIONS, QUESTIONS)}
    return {**folders, **shipped, RUN: _train_reversing(folder)}


def _train_reversing(folder: Path) -> Path:
    """A run of 150 steps with snapshots at 0, 1, 12 and 150, and checkpoints at 75 and 150."""
    words = ("red", "blue", "gold")
    rows = [row for n in (1, 2, 3, 4) for row in itertools.product(words, repeat=n)]
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows * 6))
    recipe = {
        "job": "translate",
        "data": {"train": str(pairs)},
        "tokenizer": {"kind": "word"},
        "model": {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2, "dropout": 0.0},
        "training": {
            **{
                "max_steps": 150,
                "batch_tokens": 256,
                "lr": 5e-3,
                "warmup_steps": 10,
                "eval_steps": 75,
                "save_steps": 75,
            },
            **{
                "save_total_limit": 2,
                "snapshots": 4,
                "logging_steps": 10,
                "max_generate_samples": 4,
                "device": "cpu",
            },
        },
    }
    glassformer.train(recipe, folder / RUN, log=lambda message: None)
    return folder / RUN
