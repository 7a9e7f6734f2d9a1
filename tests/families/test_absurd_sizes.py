"""Sizes that no model has are told at once: no hang, no torch error, no memory filled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import glassformer
from glassformer import GlassformerError, Mask, MultiHeadAttention

ABSURD = [10**12, 2**70, -1, 0, 1.5, "x", [], {}]
KEYS = {
    "gpt2": ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size"),
    "llama": ("num_hidden_layers", "hidden_size", "num_attention_heads", "pad_token_id", "rope_theta"),
    "bert": ("num_hidden_layers", "hidden_size", "intermediate_size", "type_vocab_size"),
    "vit": ("image_size", "patch_size", "hidden_size", "num_channels"),
    "t5": ("d_model", "d_kv", "num_decoder_layers", "relative_attention_num_buckets"),
    "patchtst": ("prediction_length", "num_input_channels", "context_length", "patch_length"),
}


@pytest.mark.parametrize(("family", "key"), [(f, k) for f, keys in KEYS.items() for k in keys])
def test_an_absurd_size_in_a_published_config_is_a_sentence(family: str, key: str, tmp_path: Path) -> None:
    folder = glassformer.save(glassformer.tiny(family), tmp_path / "model")
    (folder / "checksums.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    for value in ABSURD:
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        try:
            glassformer.load(folder)
        except GlassformerError as error:
            assert "\n" not in str(error)


def test_absurd_words_and_parts_are_sentences() -> None:
    for words in (
        {"num_layers": 2.5},
        {"d_model": -8},
        {"d_model": "64"},
        {"num_layers": 10**12},
        {"d_ff": 1e9},
    ):
        with pytest.raises(GlassformerError):
            glassformer.build("original", **words)
    for window in (0, -1, 1.5, float("nan")):
        with pytest.raises(GlassformerError, match="window"):
            Mask(window=window)  # type: ignore[arg-type]
    for parts in (
        {"num_heads": 4, "num_kv_heads": 3},
        {"num_heads": -4},
        {"num_heads": 0},
        {"num_heads": 4, "dropout": 2.0},
    ):
        with pytest.raises(GlassformerError):
            MultiHeadAttention(32, **parts)


def test_a_device_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")
    with pytest.raises(GlassformerError, match="no CUDA device"):
        glassformer.load(folder, device="cuda")
