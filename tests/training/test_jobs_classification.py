"""Text and image classification, from files to a folder that transformers loads too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import glassformer
from glassformer.bundle import Bundle
from glassformer.core.spec import ReplacedTokenSpec
from glassformer.errors import (
    GlassformerError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
from glassformer.training.data_cache import no_log
from glassformer.training.logging.history import read_history
from glassformer.training.model_setup import choose_patch_size, fit_to_patches
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import prepare_job, run

GOOD = "great lovely superb brilliant moving funny warm".split()
BAD = "dull awful boring weak flat tedious cold".split()
PLAIN = "film plot actor scene music story the a it was with and".split()
ENCODER = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1}


def reviews(path: Path, count: int, *, labels: tuple[str, str] = ("bad", "good"), more: str = "") -> Path:
    """Sentences with two telling words among words that tell nothing."""
    draw = random.Random(count)
    lines = ["text\tlabel"]
    for _ in range(count):
        good = draw.random() < 0.5
        words = draw.choices(PLAIN, k=draw.randint(4, 10)) + draw.choices(GOOD if good else BAD, k=2)
        draw.shuffle(words)
        lines.append(f"{' '.join(words)}\t{labels[good]}")
    path.write_text("\n".join(lines) + "\n" + more)
    return path


def texts(train: Path, out: Path, **sections: Any) -> dict[str, float]:
    """Train on labelled texts; the last validation's figures."""
    recipe: dict[str, Any] = {
        "job": "classify",
        "data": {"train": [str(train)], "valid": 0.2, "max_len": 16, **sections.pop("data", {})},
        "tokenizer": {"kind": "word"},
        "model": ENCODER,
        "training": {"max_steps": 60, "lr": 0.003, "batch_tokens": 512, "eval_steps": 30},
    }
    run(parse_recipe({**recipe, **sections}), out, log=no_log)
    figures: dict[str, float] = read_history(out).validations[-1]["metrics"]
    return figures


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on reviews, one of them too long."""
    folder = tmp_path_factory.mktemp("texts")
    file = reviews(folder / "reviews.tsv", 500, more=f"{'film ' * 40}superb\tgood\n")
    figures = texts(file, folder / "run")
    assert figures["accuracy"] > 0.95 and figures["f1"] > 0.95
    assert read_history(folder / "run").facts()["truncated texts"] == 1
    return folder / "run"


def test_text_classifier_matches_transformers(classified: Path) -> None:
    transformers = pytest.importorskip("transformers")
    bundle = glassformer.load(classified / "model")
    assert bundle.job.classes == ("bad", "good") and bundle.tokenizer is not None
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(classified / "model").eval()
    assert type(theirs).__name__ == "BertForSequenceClassification"
    assert theirs.config.id2label == {0: "bad", 1: "good"}
    ids = [bundle.tokenizer.encode(text).ids for text in ("a dull and flat film", "superb")]
    rows = torch.tensor([row + [0] * (len(ids[0]) - len(row)) for row in ids])
    with torch.no_grad():
        ours = bundle.model(rows)
        assert torch.allclose(ours, theirs(rows, attention_mask=rows != 0).logits, atol=1e-5)
    assert ours.argmax(-1).tolist() == [0, 1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(classified / "model")
    assert tokenizer("a dull and flat film")["input_ids"] == ids[0]


def test_fine_tuning_keeps_the_head_for_the_same_labels(classified: Path, tmp_path: Path) -> None:
    """With the same labels the head stays; with others it is new."""
    model = {"folder": str(classified / "model")}
    one_step = {"max_steps": 1, "lr": 1e-6, "batch_tokens": 512}
    same = texts(reviews(tmp_path / "same.tsv", 120), tmp_path / "same", model=model, training=one_step)
    assert same["accuracy"] > 0.95
    rows = reviews(tmp_path / "three.tsv", 150, more="film plot\tneither\n" * 60)
    more = {"max_steps": 40, "lr": 0.002, "batch_tokens": 512, "eval_steps": 40}
    assert texts(rows, tmp_path / "three", model=model, training=more)["accuracy"] > 0.95
    assert glassformer.load(tmp_path / "three/model").job.classes == ("bad", "good", "neither")


def test_classifier_from_a_sentence_encoder(tmp_path: Path) -> None:
    """Files of the base folder that describe its pooling are not kept; max_len fits the base model."""
    transformers = pytest.importorskip("transformers")
    file = reviews(tmp_path / "reviews.tsv", 60)
    tokenizer = train_tokenizer(GOOD + BAD + PLAIN, TokenizerPlan(kind="word", template="cls_sep"))
    encoder = glassformer.tiny("sentence", vocab_size=tokenizer.vocab_size, max_len=24)
    base = glassformer.save(Bundle(model=encoder, tokenizer=tokenizer), tmp_path / "base")
    assert (base / "modules.json").is_file()
    one_step = {"max_steps": 1, "lr": 0.001, "batch_tokens": 512}
    data = {"max_len": None}
    texts(file, tmp_path / "run", data=data, model={"folder": str(base)}, training=one_step)
    assert glassformer.load(tmp_path / "run").job.max_len == 24
    assert len(glassformer.load(tmp_path / "run").classify("a great film")) == 2
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/model")
    assert type(theirs).__name__ == "BertForSequenceClassification"
    assert not (tmp_path / "run/model/modules.json").exists()
    with pytest.raises(InvalidValueError) as caught:
        texts(file, tmp_path / "long", data={"max_len": 25}, model={"folder": str(base)}, training=one_step)
    assert caught.value.name == "data.max_len"


@pytest.mark.parametrize("preset", ["electra", "modernbert", "deberta"])
def test_other_text_encoders_have_their_published_heads(preset: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = {"max_steps": 1, "lr": 0.001, "batch_tokens": 512}
    file = reviews(tmp_path / "reviews.tsv", 60)
    texts(file, tmp_path / "run", model={"preset": preset, **ENCODER}, training=words)
    bundle = glassformer.load(tmp_path / "run/model")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/model").eval()
    rows = torch.tensor([[2, 9, 8, 7, 3], [2, 9, 3, 0, 0]])
    with torch.no_grad():
        ours, other = bundle.model(rows), theirs(rows, attention_mask=rows != 0).logits
    assert bundle.family == preset and torch.allclose(ours, other, atol=1e-5)


def test_classifier_from_a_folder_has_the_head_of_its_family(tmp_path: Path) -> None:
    """ELECTRA's base model has the layers of BERT, but another head."""
    tokenizer = train_tokenizer(GOOD + BAD + PLAIN, TokenizerPlan(kind="word", template="cls_sep"))
    encoder = glassformer.tiny(
        "electra", vocab_size=tokenizer.vocab_size, embedding_dim=None, head=ReplacedTokenSpec()
    )
    base = glassformer.save(Bundle(model=encoder, tokenizer=tokenizer), tmp_path / "base")
    one_step = {"max_steps": 1, "lr": 0.001, "batch_tokens": 512}
    file = reviews(tmp_path / "reviews.tsv", 60)
    texts(file, tmp_path / "run", model={"folder": str(base)}, training=one_step)
    assert glassformer.load(tmp_path / "run/model").family == "electra"


@pytest.mark.parametrize(
    ("valid", "model", "error"),
    [("film\tgod\n", {}, UnknownNameError), ("film\tgood\n", {"preset": "gpt2"}, UnsupportedError)],
)
def test_unknown_label_and_unsupported_preset_are_errors(
    valid: str, model: dict[str, Any], error: type[GlassformerError], tmp_path: Path
) -> None:
    (tmp_path / "valid.tsv").write_text(f"text\tlabel\n{valid}")
    train = reviews(tmp_path / "train.tsv", 40)
    with pytest.raises(error):
        texts(train, tmp_path / "run", data={"valid": [str(tmp_path / "valid.tsv")]}, model=model)


def test_a_single_class_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError):
        texts(reviews(tmp_path / "train.tsv", 40, labels=("bad", "bad")), tmp_path / "run")


def class_folders(folder: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    """Write a folder of images per class."""
    for n, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / str(label) / f"{n:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def test_image_classifier_learns_digits_and_matches_transformers(tmp_path: Path) -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)
    recipe = {
        "job": "classify",
        "data": {"train": [str(class_folders(tmp_path / "digits", images, digits.target))], "valid": 0.15},
        "model": {
            "patch_size": 4,
            "d_model": 64,
            "num_heads": 4,
            "d_ff": 128,
            "num_layers": 2,
            "dropout": 0.0,
        },
        "training": {"max_steps": 160, "lr": 0.002, "batch_size": 64, "eval_steps": 160},
    }
    run(parse_recipe(recipe), tmp_path / "run", log=no_log)
    figures = read_history(tmp_path / "run").validations[-1]["metrics"]
    assert figures["accuracy"] > 0.95 and figures["f1"] > 0.95
    transformers = pytest.importorskip("transformers")
    bundle = glassformer.load(tmp_path / "run/model")
    about = bundle.job.to_dict()
    assert about["classes"] == [str(n) for n in range(10)] and about["size"] == [8, 8]
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "run/model").eval()
    process = transformers.AutoImageProcessor.from_pretrained(tmp_path / "run/model")
    pixels = process(list(images[:20, :, :, None]), return_tensors="pt", input_data_format="channels_last")
    mine = (torch.from_numpy(images[:20, None]) / 255 - about["mean"][0]) / about["std"][0]
    with torch.no_grad():
        ours, other = bundle.model(mine), theirs(**pixels).logits
    assert torch.allclose(ours, other, atol=1e-4)
    assert (ours.argmax(-1).numpy() == digits.target[:20]).mean() > 0.9


def test_new_labels_of_the_same_images_are_noticed(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    recipe = {
        "job": "classify",
        "data": {"train": [str(tmp_path / "images")], "valid": 0.2},
        "model": ENCODER,
        "training": {"max_steps": 1, "batch_size": 8},
    }
    class_folders(tmp_path / "images", pixels, np.arange(40) % 2)
    for classes in (["0", "1"], ["3", "4"]):
        job = prepare_job(parse_recipe(recipe), tmp_path / "run", torch.device("cpu"), no_log)
        assert job.facts["training images"] + job.facts["validation images"] == 40
        assert job.facts["classes"] == classes
        for label in (0, 1):
            if classes[0] == "0":
                (tmp_path / "images" / str(label)).rename(tmp_path / "images" / str(label + 3))


def test_default_image_size_is_always_divisible_into_patches(tmp_path: Path) -> None:
    for height, width in np.random.default_rng(0).integers(1, 3000, (2000, 2)).tolist():
        fitted = fit_to_patches(height, width, None)
        assert (choose_patch_size(*fitted) and max(fitted) <= 224) or fitted == (height, width)
        assert [side % 12 for side in fit_to_patches(height, width, (12, 6))] in ([0, 0], [0, 6])
    sizes = [(200, 150), (640, 480), (333, 500), (1000, 700), (120, 97), (90, 160), (75, 75), (300, 290)]
    for number, size in enumerate(sizes * 3):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (number, 9, 9)).save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png")
    recipe = {"job": "classify", "data": {"train": [str(tmp_path / "photos")], "valid": 0.3}}
    training = {"max_steps": 1, "device": "cpu", "batch_size": 2}
    tiny = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 1}
    bundle = glassformer.train({**recipe, "model": tiny, "training": training}, tmp_path / "run")
    assert all(side % 8 == 0 for side in bundle.job.size)


def test_gray_images_are_converted_for_a_color_model(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    pixels, labels = draw.integers(0, 256, (40, 16, 16), np.uint8), np.arange(40) % 2
    class_folders(tmp_path / "grey-images", pixels, labels)
    class_folders(tmp_path / "colour-images", np.stack([pixels] * 3, -1), labels)
    base = glassformer.save(glassformer.tiny("vit"), tmp_path / "base")
    results = {}
    for name in ("grey", "colour"):
        recipe = {
            "job": "classify",
            "data": {
                "input": "image",
                "train": [str(tmp_path / f"{name}-images")],
                "valid": [str(tmp_path / "grey-images")],
            },
            "model": {"folder": str(base)},
            "training": {"max_steps": 2, "batch_size": 16},
        }
        run(parse_recipe(recipe), tmp_path / name, log=no_log)
        results[name] = read_history(tmp_path / name).validations[-1]["metrics"]
    assert results["grey"] == results["colour"]


def digit_files(folder: Path) -> Path:
    """Scanned digits in color, 8 x 8 pixels, as a folder per class."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)
    colors = np.repeat(images[..., None], 3, -1)
    return class_folders(folder / "digits", colors, digits.target)


def test_hierarchical_classifier_learns_digits_and_matches_transformers(tmp_path: Path) -> None:
    recipe = {
        "job": "classify",
        "data": {"input": "image", "train": [str(digit_files(tmp_path))], "valid": 0.15, "mixup_prob": 0.2},
        "model": {
            "preset": "swin",
            "embed_dim": 48,
            "depths": [2, 1],
            "num_heads": [2, 4],
            "window_size": 2,
        },
        "training": {"max_steps": 160, "lr": 0.002, "batch_size": 64, "eval_steps": 160}
        | {"drop_path_rate": 0.05, "layer_lr_decay": 0.9},
    }
    run(parse_recipe(recipe), tmp_path / "run", log=no_log)
    assert read_history(tmp_path / "run").validations[-1]["metrics"]["accuracy"] > 0.9
    bundle = glassformer.load(tmp_path / "run/model")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.SwinForImageClassification.from_pretrained(tmp_path / "run/model").eval()
    pixels = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert (bundle.model(pixels) - theirs(pixels).logits).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["dinov2", "clip", "swinv2"])
def test_linear_probe_of_a_loaded_image_encoder(family: str, tmp_path: Path) -> None:
    from glassformer.core.build import build_model
    from glassformer.families.registry import tiny_spec

    torch.manual_seed(0)
    base = glassformer.Pipeline(model=build_model(tiny_spec(family)))
    glassformer.save(base, tmp_path / "base")
    size = 12 if family == "dinov2" else 8  # it interpolates its positions
    if family == "clip":
        size = base.model.image.spec.input.image_size[0]
    recipe = {
        "job": "classify",
        "data": {
            "input": "image",
            "train": [str(digit_files(tmp_path))],
            "valid": 0.15,
            "image_size": [size],
        },
        "model": {"folder": str(tmp_path / "base")},
        "training": {"max_steps": 20, "lr": 0.01, "batch_size": 64, "freeze": ["embed", "encoder"]},
    }
    run(parse_recipe(recipe), tmp_path / "run", log=no_log)
    trained = glassformer.load(tmp_path / "run/model")
    assert trained.spec.head.num_labels == 10  # type: ignore[union-attr]
    before = base.model.image if family == "clip" else base.model
    frozen = dict(before.encoder.named_parameters())
    assert all(torch.equal(p, frozen[name]) for name, p in trained.model.encoder.named_parameters())
    logits = trained.model(torch.randn(2, 3, size, size))
    if family != "clip":  # its classifier has no published layout here
        transformers = pytest.importorskip("transformers")
        theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "run/model").eval()
        torch.manual_seed(1)
        pixels = torch.randn(2, 3, size, size)
        with torch.no_grad():
            assert (trained.model(pixels) - theirs(pixels).logits).abs().max() < 1e-5
    assert logits.shape == (2, 10)
