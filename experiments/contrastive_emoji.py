"""Images and names in one space: find emoji that the model never saw by their names in English and Korean.

Runs are "scratch/1" (a CLIP model from scratch) and "dinov2/1" (its image tower is DINOv2-small; the folder
dinov2-small, which `experiments.dinov2_small` writes, is expected among the data sets).

A pair is a picture of an emoji in any of six styles, on a random plain background, and a text: its name, some
of its keywords, or both. 300 of the 1,911 emoji are held out in all styles and both languages: the first 300
of a permutation with the seed 0. The figures are recall@1 among their 300 names (chance 0.33 %): of every
picture, of the mean over an emoji's styles, and from a name to the 300 means. The text of a held-out emoji is
its name, or its name and keywords (`with keywords`).

What generalizes to unseen emoji are parts of names (flag, woman, face, clock), so the text towers read
sub-words, which are split at random (BPE dropout); pictures are augmented on the device.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional as F

from experiments.paths import Workspace
from experiments.vision_training import record, train_for
from glassformer.bundle import Bundle, load, save
from glassformer.core import spec
from glassformer.core.model import TwoTower
from glassformer.data.examples import Arrays
from glassformer.families.clip import clip
from glassformer.training.hardware import device_for
from glassformer.training.jobs.contrastive import ContrastiveLearner
from glassformer.training.jobs.detection import IMAGENET_MEAN, IMAGENET_STD
from glassformer.training.model_setup import build_initialized
from glassformer.training.recipe import TrainingOptions, parse_section, with_overrides
from glassformer.training.task import LearnerTask, ValidationResult

ROW, SECONDS, OF = "contrastive-emoji", 360.0, "en emoji to name"
STYLES = ("noto", "twemoji", "openmoji", "fluent-flat", "emojione", "noto-blob")
LANGUAGES = ("en", "ko")
HELD_OUT, SIZE, MAX_LEN, VOCAB_SIZE = 300, 64, 32, 3000
DINOV2_SIZE = 112  # pictures are enlarged to 8 x 8 patches
START, END, PAD = 0, 1, 2
TEXT_VERSIONS, BPE_DROPOUT = 5, 0.15
BATCHES = 1 << 30  # of random pairs
TRAINING: dict[str, Any] = {
    **{"batch_size": 1250, "lr": 8e-4, "weight_decay": 0.2, "betas": (0.9, 0.98)},
    **{"ema": 0.999, "max_grad_norm": 1.0},
}
LR_FACTORS: dict[str, dict[str, float]] = {
    "scratch": {},
    "dinov2": {"image.embed": 0.1, "image.encoder": 0.1},
}


@dataclass(frozen=True)
class Emoji:
    """Pictures (N, 64, 64, 4) with the row of each, and names and keywords of each row by language."""

    images: Tensor
    rows: Tensor
    names: dict[str, list[str]]
    keywords: dict[str, list[list[str]]]


def read_emoji(folder: Path) -> Emoji:
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
        names={lang: [line[f"name_{lang}"] for line in table] for lang in LANGUAGES},
        keywords={
            lang: [[word for word in line[f"keywords_{lang}"].split(" | ") if word] for line in table]
            for lang in LANGUAGES
        },
    )


def held_out_rows(count: int) -> NDArray[np.int64]:
    """The held-out emoji: the first 300 of a permutation of all rows with the seed 0."""
    return np.sort(np.random.default_rng(0).permutation(count)[:HELD_OUT])


# --- texts


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A BPE tokenizer of lower-cased words; Korean syllables are split into letters (NFKD)."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    special = ["<s>", "</s>", "<pad>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=special, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", START), ("</s>", END)]
    )
    tokenizer.enable_truncation(MAX_LEN)
    tokenizer.enable_padding(pad_id=PAD, pad_token="<pad>", length=MAX_LEN)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Token ids (N, MAX_LEN)."""
    return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(texts)])


class Texts:
    """Token ids of every text that an emoji may get.

    The ids of all texts are encoded several times with BPE dropout, once without it.
    """

    def __init__(
        self, emoji: Emoji, rows: NDArray[np.int64], tokenizer: Tokenizer, rng: np.random.Generator
    ) -> None:
        texts: list[str] = []
        spans: list[list[tuple[int, int]]] = []  # of each row and language: first text and number of texts
        for row in rows:
            spans.append([])
            for lang in LANGUAGES:
                name, keywords = emoji.names[lang][row], emoji.keywords[lang][row]
                own = [name] * 6
                own += [word for word in keywords if word != name][:8]
                for _ in range(6):
                    some = list(rng.permutation(keywords)[: rng.integers(1, 5)]) if keywords else []
                    parts = [name, *some] if rng.random() < 0.6 else some or [name]
                    own.append(", ".join(parts))
                spans[-1].append((len(texts), len(own)))
                texts += own
        versions = [encode(tokenizer, texts)]
        tokenizer.model.dropout = BPE_DROPOUT
        versions += [encode(tokenizer, texts) for _ in range(TEXT_VERSIONS - 1)]
        tokenizer.model.dropout = None
        self.ids = torch.stack(versions)  # (versions, texts, T)
        self.spans = torch.tensor(spans)  # (rows, languages, 2)

    def draw(self, index: Tensor) -> Tensor:
        """Draw the ids (B, T) of a text for each row (B,)."""
        count, device = len(index), index.device
        language = torch.randint(len(LANGUAGES), (count,), device=device)
        first, number = self.spans[index, language].unbind(-1)
        chosen = first + (torch.rand(count, device=device) * number).long()
        return self.ids[torch.randint(len(self.ids), (count,), device=device), chosen]


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


def build(vocab_size: int, image: Bundle | None, **sizes: Any) -> TwoTower:
    """A CLIP model with 12 million parameters, or with a pretrained encoder as its image tower.

    sizes: other options of the CLIP model, for a quick try.
    """
    tower = {"d_model": 320, "num_heads": 5, "d_ff": 1280}
    text = {f"text_{name}": value for name, value in {**tower, "num_layers": 4}.items()}
    fixed = {"image_size": SIZE, "vocab_size": vocab_size, "max_len": MAX_LEN, "end_id": END}
    activations = {"activation": "gelu", "text_activation": "gelu"}
    options = {**tower, "num_layers": 8, "patch_size": 8, **text, "projection_dim": 256, **activations}
    towers = clip(**fixed, **{**options, **sizes})
    assert isinstance(towers, spec.TwoTowerSpec)
    if image is not None:
        assert isinstance(image.spec, spec.EncoderOnlySpec)
        towers = replace(towers, image=replace(image.spec, head=spec.ProjectionSpec(projection_dim=256)))
    regularized = replace(towers, image=_regularize(towers.image, 0.2), text=_regularize(towers.text, 0.1))
    model = build_initialized(regularized)
    assert isinstance(model, TwoTower)
    if image is not None:
        loaded = model.image.load_state_dict(image.model.state_dict(), strict=False)
        assert all(name.startswith("head.") for name in (*loaded.missing_keys, *loaded.unexpected_keys))
    return model


def _regularize(tower: spec.EncoderOnlySpec, rate: float) -> spec.EncoderOnlySpec:
    """Add dropout and stochastic depth to a tower."""
    assert isinstance(tower.encoder, spec.StackSpec)
    block = replace(tower.encoder.block, dropout=rate / 2)
    return replace(tower, encoder=replace(tower.encoder, block=block, drop_path=(0.0, rate)))


class EmojiLearner(ContrastiveLearner):
    """Draw pictures and texts of emoji on the device, and compare them.

    images: bytes (N, 64, 64, 4). table: the pictures of each emoji (E, styles), some repeated.
    size: side to which pictures are resized, a multiple of the patches.
    """

    def __init__(self, model: TwoTower, images: Tensor, table: Tensor, texts: Texts, size: int) -> None:
        super().__init__(model)
        self.size, self.texts = size, texts
        for name, tensor in (("images", images), ("table", table)):
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def pixels(self, pictures: Tensor) -> Tensor:
        """Resize and normalize pictures (B, 3, H, W) from 0 to 1."""
        sizes = (self.size, self.size)
        resized = F.interpolate(pictures, sizes, mode="bicubic", align_corners=False).clamp(0, 1)
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
        for lang in LANGUAGES:
            names = [emoji.names[lang][row] for row in rows]
            extended = [", ".join([emoji.names[lang][row], *emoji.keywords[lang][row][:4]]) for row in rows]
            self.texts[lang] = encode(tokenizer, names)
            self.texts[f"{lang} with keywords"] = encode(tokenizer, extended)

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
    emoji = read_emoji(workspace.data / "emoji-captions")
    total = len(emoji.names["en"])
    held_out = held_out_rows(total)
    seen = np.setdiff1d(np.arange(total), held_out)
    corpus = [
        text
        for lang in LANGUAGES
        for row in seen
        for text in (emoji.names[lang][row], *emoji.keywords[lang][row])
    ]
    tokenizer = train_tokenizer(corpus)
    image = load(workspace.data / "dinov2-small", dtype="float32") if kind == "dinov2" else None
    model = build(tokenizer.get_vocab_size(), image, **changes.get("model", {}))

    number = torch.full((total,), -1)
    number[torch.from_numpy(seen)] = torch.arange(len(seen))
    owner = number[emoji.rows]
    own = [(owner == n).nonzero()[:, 0] for n in range(len(seen))]
    styles = torch.arange(len(STYLES))
    table = torch.stack([pictures[styles % len(pictures)] for pictures in own])
    texts = Texts(emoji, seen, tokenizer, rng)
    texts.ids, texts.spans = texts.ids.to(device), texts.spans.to(device)
    learner = EmojiLearner(model, emoji.images, table, texts, SIZE if image is None else DINOV2_SIZE)
    held, known = (
        Evaluation(emoji, rows, tokenizer) for rows in (held_out, np.sort(rng.permutation(seen)[:HELD_OUT]))
    )
    task = LearnerTask(
        learner=learner,
        train=EmojiExamples(len(seen), len(STYLES)),
        unit="pairs",
        count=count,
        metric=OF,
        validate=lambda _: ValidationResult(metrics=held(learner, device)),
        save=partial(save, Bundle(model=model)),
    )
    chosen = {**TRAINING, "lr_factors": LR_FACTORS[kind], **changes.get("training", {})}
    options = parse_section(TrainingOptions, chosen)
    limit = workspace.seconds or SECONDS
    trained = train_for(task, options, seconds=limit, seed=int(seed), device=device, of=OF)
    task.save(workspace.run(ROW, name) / "model")
    seen_figures = {f"seen {key}": value for key, value in known(learner, device).items()}
    record(workspace, ROW, name, trained, OF, {**trained.metrics, **seen_figures})
