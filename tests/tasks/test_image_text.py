"""Zero-shot classification, embedding and search with an image and a text tower, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import glassformer
from glassformer.errors import EmptyInputError, InvalidValueError, UnsupportedError
from glassformer.tasks import Embedder, RejectedInputError, ZeroShotClassifier
from glassformer.tokenization import load_tokenizer
from tests.families import harness

CORPUS = ["a photo of a cat", "a photo of a dog", "The big red house's door", "blue sky, 12 birds!"] * 3
LABELS = ["cat", "dog", "red house"]
START, END = "<|startoftext|>", "<|endoftext|>"


def clip_tokenizer() -> transformers.CLIPTokenizer:
    """Transformers' tokenizer with a small vocabulary trained on the corpus."""
    backend = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=560, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    trained = json.loads(backend.to_str())["model"]
    vocabulary = dict(trained["vocab"])
    for token in (*(f"{letter}</w>" for letter in alphabet), START, END):
        vocabulary.setdefault(token, len(vocabulary))
    merges = [tuple(merge) for merge in trained["merges"]]
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=20)


def save_clip(folder: Path) -> tuple[Any, Any, Any]:
    tokenizer = clip_tokenizer()
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37}
    text = {**sizes, "vocab_size": len(tokenizer), "max_position_embeddings": 20}
    settings = {
        "text_config": {**text, "eos_token_id": tokenizer.eos_token_id},
        "vision_config": {**sizes, "image_size": 16, "patch_size": 4},
        "projection_dim": 12,
    }
    model = harness.reference("CLIPModel", settings)
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=16)
    for part in (model, tokenizer, processor):
        part.save_pretrained(folder)
    return model, tokenizer, processor


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("clip")
    return (*save_clip(folder), glassformer.load(folder))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of different sizes, in a folder."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, size in (("a.png", (40, 30)), ("b.png", (17, 50)), ("c.png", (16, 16))):
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(folder / name)
    return sorted(folder.iterdir())


def reference_embeddings(clip: Any, pictures: list[Path], texts: list[str]) -> Any:
    model, tokenizer, processor, _ = clip
    pixels = processor([Image.open(path) for path in pictures], return_tensors="pt")["pixel_values"]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(
            pixel_values=pixels, input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]
        )


def test_tokenizer_matches_transformers(clip: Any) -> None:
    _, tokenizer, _, pipeline = clip
    for text in (
        *CORPUS[:4],
        "  Ünïcode\n\tand   SPACES  ",
        "unseen words: zebra-stripes 2024",
        "한국어 고양이",
    ):
        assert pipeline.tokenizer.encode(text).ids == tokenizer(text)["input_ids"], text


def test_tokenizer_loads_from_vocabulary_and_merges(clip: Any, tmp_path: Path) -> None:
    """Older folders have vocab.json and merges.txt instead of tokenizer.json."""
    _, tokenizer, _, pipeline = clip
    model = json.loads((pipeline.folder / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{' '.join(merge)}\n" for merge in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None and loaded.pad_id == loaded.eos_id == tokenizer.eos_token_id
    for text in (*CORPUS[:4], "  Ünïcode\n\tand   SPACES  ", "unseen: zebra-stripes 2024", "한국어"):
        assert loaded.encode(text).ids == tokenizer(text)["input_ids"], text


def test_embed_matches_transformers(clip: Any, pictures: list[Path]) -> None:
    """Images and texts in one list, of different sizes and lengths, come back in order."""
    texts = ["a photo of a cat", "the big red house's door and a dog"]
    theirs = reference_embeddings(clip, pictures, texts)
    mixed = [pictures[0], texts[0], str(pictures[1]), Image.open(pictures[2]), texts[1]]
    ours = clip[3].embed(mixed)
    expected = torch.cat((theirs.image_embeds, theirs.text_embeds))[[0, 3, 1, 2, 4]]
    assert (ours - expected).abs().max() < 1e-5


@pytest.mark.parametrize("templates", [("a photo of a {}",), ("a photo of a {}", "{}", "the {}!")])
def test_zero_shot_classification_averages_templates(
    clip: Any, pictures: list[Path], templates: tuple[str, ...]
) -> None:
    """Softmax of the scaled cosine with the mean of the unit vectors of a label's texts."""
    texts = [template.replace("{}", label) for label in LABELS for template in templates]
    theirs = reference_embeddings(clip, pictures, texts)
    means = torch.nn.functional.normalize(theirs.text_embeds.unflatten(0, (len(LABELS), -1)).mean(1), dim=-1)
    expected = (clip[0].logit_scale.exp() * theirs.image_embeds @ means.T).softmax(-1)
    found = clip[3].classify(pictures, labels=LABELS, template=templates)
    for row, labels in zip(expected, found, strict=True):
        scores = {label.label: label.score for label in labels}
        assert torch.tensor([scores[name] for name in LABELS]).sub(row).abs().max() < 1e-5
    best = clip[3].classify(pictures[0], labels=LABELS, template=templates, top=1)
    assert [label.label for label in best] == [found[0][0].label]


def test_similar_searches_across_images_and_texts(clip: Any, pictures: list[Path]) -> None:
    texts = ["a photo of a cat", "a photo of a dog", "blue sky"]
    theirs = reference_embeddings(clip, pictures, texts)
    cosines = theirs.text_embeds @ theirs.image_embeds.T
    for found, row in zip(clip[3].similar(texts, pictures), cosines, strict=True):
        assert [match.index for match in found] == row.argsort(descending=True).tolist()
    first = clip[3].similar(pictures[0], texts, top=1)[0]
    assert first.text == texts[int(cosines[:, 0].argmax())]


def test_sigmoid_model_pads_texts_and_scores_labels_independently(
    clip: Any, pictures: list[Path], tmp_path: Path
) -> None:
    """Texts are padded to the full length with the pad token, which the model reads."""
    tokenizer, processor = clip[1], clip[2]
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37}
    settings = {
        "text_config": {**sizes, "vocab_size": len(tokenizer), "max_position_embeddings": 20},
        "vision_config": {**sizes, "image_size": 16, "patch_size": 4},
    }
    model = harness.reference("SiglipModel", settings)
    for part in (model, tokenizer, processor):
        part.save_pretrained(tmp_path)
    texts = ["a photo of a cat", "the big red house's door and a dog"]
    pixels = processor([Image.open(path) for path in pictures], return_tensors="pt")["pixel_values"]
    ids = tokenizer(texts, padding="max_length", max_length=20, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = torch.sigmoid(model(pixel_values=pixels, input_ids=ids).logits_per_image)
    found = glassformer.load(tmp_path).classify(pictures, labels=texts, template="{}")
    for row, labels in zip(expected, found, strict=True):
        scores = {label.label: label.score for label in labels}
        assert torch.tensor([scores[name] for name in texts]).sub(row).abs().max() < 1e-5


def test_folders_stand_for_their_images(clip: Any, pictures: list[Path]) -> None:
    pipeline, folder = clip[3], pictures[0].parent
    files = sorted(pictures)
    assert pipeline.classify(str(folder), labels=LABELS) == pipeline.classify(files, labels=LABELS)
    assert (pipeline.embed(folder) == pipeline.embed(files)).all()
    assert pipeline.embed("a cat").ndim == 1
    assert pipeline.similar("a cat", folder) == pipeline.similar("a cat", files)
    matches = pipeline.similar("a cat", [files[0].read_bytes(), "a dog"])
    assert sorted(match.text for match in matches) == ["", "a dog"]  # no text for the content of a file


def test_rejected_inputs_are_numbered_among_all_inputs(clip: Any, pictures: list[Path]) -> None:
    with pytest.raises(RejectedInputError) as error:
        Embedder(clip[3])(["a cat", pictures[0], "missing.png"])
    assert (error.value.kind, error.value.number) == ("image", 3)
    with pytest.raises(InvalidValueError) as bad:
        clip[3].classify(pictures[0], labels=LABELS, template="no place for it")
    assert bad.value.name == "template"
    with pytest.raises(EmptyInputError):
        clip[3].classify(pictures[0], labels=[])
    for labels in (["cat", " "], ["cat", "cat"], "cat"):
        with pytest.raises(InvalidValueError):
            clip[3].classify(pictures[0], labels=labels)
    with pytest.raises(UnsupportedError):
        ZeroShotClassifier(glassformer.Pipeline(model=glassformer.tiny("vit")), LABELS)
