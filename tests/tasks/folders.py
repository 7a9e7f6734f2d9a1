"""Folders with tiny random models of transformers and a tokenizer of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from tests.families import harness
from tests.families.cases import _BERT, _IMAGES

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


def blip(name: str, folder: Path) -> tuple[Any, Path]:
    """A random BLIP and its folder, with a tokenizer and an image processor."""
    ids = {"bos_token_id": 4, "sep_token_id": 3, "pad_token_id": 0}
    text = {**_BERT, "vocab_size": len(VOCABULARY), "max_position_embeddings": 60, **ids}
    model = harness.reference(name, {"vision_config": {**_IMAGES, "image_size": 17}, "text_config": text})
    model.text_decoder.cls.predictions.decoder.bias.data[3] += 2  # some texts end before the limit
    harness.save_reference(model, folder)
    transformers.BlipImageProcessorPil(size={"height": 17, "width": 17}).save_pretrained(folder)
    write_tokenizer(folder)
    return model, folder


def captioner(folder: Path) -> tuple[Any, Path]:
    """A random ViT with a BERT decoder and its folder, with a tokenizer and an image processor."""
    sizes = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 60, "pad_token_id": 0}
    role = {"is_decoder": True, "add_cross_attention": True}
    configs = {
        "encoder": {"model_type": "vit", **_IMAGES, "image_size": [16, 12]},
        "decoder": {"model_type": "bert", **_BERT, **sizes, **role},
    }
    model = harness.reference("VisionEncoderDecoderModel", configs)
    ids = {"decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    model.generation_config = transformers.GenerationConfig(**ids)
    harness.save_reference(model, folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 12}).save_pretrained(folder)
    write_tokenizer(folder)
    return model, folder


def vilt(folder: Path, labels: tuple[str, ...] = ("yes", "no", "two", "red")) -> tuple[Any, Path]:
    """A random ViLT and its folder, with a tokenizer and an image processor that keeps the aspect ratio."""
    names = {"id2label": dict(enumerate(labels)), "label2id": {name: n for n, name in enumerate(labels)}}
    sizes = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 20, "image_size": 16, "patch_size": 4}
    model = harness.reference("ViltForQuestionAnswering", {**_BERT, **sizes, **names})
    harness.save_reference(model, folder)
    transformers.ViltImageProcessorPil(size={"shortest_edge": 16}, size_divisor=4).save_pretrained(folder)
    write_tokenizer(folder)
    return model, folder
