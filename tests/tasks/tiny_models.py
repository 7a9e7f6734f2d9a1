"""Tiny models for tests: one trained to reverse rows of words, and a random byte-level language model."""

from __future__ import annotations

import atexit
import itertools
import random
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

import glassformer
from glassformer.tokenization import Tokenizer, TokenizerPlan, train_tokenizer

WORDS = ("red", "blue", "green", "gold")
ROWS = [" ".join(row) for n in (1, 2, 3) for row in itertools.product(WORDS, repeat=n)]
KOREAN = "늙은 선장이 바다에 노래를 불렀다. 🌊🐚 ça va, señor? 👩‍🚀"


def reverse(row: str) -> str:
    return " ".join(reversed(row.split()))


@cache
def reversal_model() -> Path:
    """The folder of a model trained to reverse `ROWS`; trained once per process, in seconds."""
    folder = Path(mkdtemp(prefix="glassformer-reversal-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    samples = random.Random(0).choices(ROWS[:20], k=300) + random.Random(1).choices(ROWS, k=700)
    (folder / "pairs.tsv").write_text("".join(f"{row}\t{reverse(row)}\n" for row in samples))
    recipe = {
        "job": "translate",
        "seed": 1,
        "data": {"train": str(folder / "pairs.tsv")},
        "tokenizer": {"kind": "word"},
        "model": {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1, "dropout": 0.0},
        "training": {
            "max_steps": 180,
            "batch_tokens": 512,
            "lr": 5e-3,
            "warmup_steps": 20,
            "label_smoothing": 0.0,
        }
        | {"eval_steps": 180, "device": "cpu"},
    }
    glassformer.train(recipe, folder / "run", log=lambda message: None)
    return folder / "run" / "model"


@cache
def byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer with few complete Korean syllables and no emoji."""
    plan = TokenizerPlan(kind="byte", vocab_size=300, template="none")
    return train_tokenizer([KOREAN[:9], "the old captain sang to the sea"] * 3, plan)


def save_language_model(folder: Path, family: str = "gpt2", **overrides: object) -> Path:
    """Save a byte-level language model with random weights into a folder."""
    torch.manual_seed(3)
    tokenizer = byte_tokenizer()
    model = glassformer.tiny(family, vocab_size=tokenizer.vocab_size, **overrides)
    generation = {"eos_token_id": tokenizer.eos_id}
    bundle = glassformer.Pipeline(model=model, tokenizer=tokenizer, family=family, generation=generation)
    return glassformer.save(bundle, folder)
