"""Train a CLIP model on emoji and their names, and find emoji that it never saw by name.

    python -m experiments.contrastive_emoji --out emoji.json
    python -m experiments.contrastive_emoji --minutes 3 --small --plain --emoji 200 --batch 64 --warmup 20

A pair is a picture of an emoji in any of six styles, on a random plain background, and a text in English or
Korean: its name, one of its keywords, or both. 300 of the 1,911 emoji are held out in all styles and both
languages: the first 300 of a permutation with the seed 0 (`held_out_rows`). The figures are recall@1 among
the 300 held-out names (chance 0.33 %): of every held-out picture, of the mean over an emoji's styles, and
from a name to the 300 mean vectors. The text of a held-out emoji is its name, or its name and keywords
(`with_keywords`).

What generalizes to unseen emoji are parts of names (flag, woman, face, clock), so the text tower reads
sub-words, which are split at random (BPE dropout); pictures are shifted, scaled, rotated, recolored and
blurred on the device. Weights are averaged (EMA). The data set is `emoji-captions`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional as F

from experiments.paths import data_folder
from glassformer.bundle import Bundle, save
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.model import TwoTower
from glassformer.families.clip import clip
from glassformer.training.losses import contrastive_loss
from glassformer.training.model_setup import build_initialized

STYLES = ("noto", "twemoji", "openmoji", "fluent-flat", "emojione", "noto-blob")
HELD_OUT, SIZE, MAX_LEN = 300, 64, 32
START, END, PAD = 0, 1, 2
LANGUAGES = ("en", "ko")
MEAN, STD = 0.5, 0.25


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


def held_out_rows(count: int) -> np.ndarray:
    """The held-out emoji: the first 300 of a permutation of all rows with the seed 0."""
    return np.sort(np.random.default_rng(0).permutation(count)[:HELD_OUT])


def train_tokenizer(texts: list[str], size: int) -> Tokenizer:
    """A BPE tokenizer of lower-cased words; Korean syllables are split into letters (NFKD)."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    special = ["<s>", "</s>", "<pad>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", START), ("</s>", END)]
    )
    tokenizer.enable_truncation(MAX_LEN)
    tokenizer.enable_padding(pad_id=PAD, pad_token="<pad>", length=MAX_LEN)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(texts)])


def make_spec(vocab_size: int, *, small: bool) -> spec.TwoTowerSpec:
    sizes = {"d_model": 128, "num_heads": 4, "d_ff": 384, "num_layers": 3}
    if not small:
        sizes = {"d_model": 320, "num_heads": 5, "d_ff": 1280, "num_layers": 8}
    text = {f"text_{name}": value for name, value in sizes.items()} | {"text_num_layers": 3 if small else 4}
    model = clip(
        image_size=SIZE,
        patch_size=16 if small else 8,
        **sizes,
        **text,
        vocab_size=vocab_size,
        max_len=MAX_LEN,
        end_id=END,
        projection_dim=128 if small else 256,
        activation="gelu",
        text_activation="gelu",
    )
    assert isinstance(model, spec.TwoTowerSpec)
    if small:
        return model
    return replace(model, image=regularize(model.image, 0.2), text=regularize(model.text, 0.1))


def regularize(tower: spec.EncoderOnlySpec, rate: float) -> spec.EncoderOnlySpec:
    """Add dropout and stochastic depth to a tower."""
    block = replace(tower.encoder.block, dropout=rate / 2)
    return replace(tower, encoder=replace(tower.encoder, block=block, drop_path=(0.0, rate)))


class Texts:
    """Token ids of every text that an emoji may get, drawn anew for each pair.

    The ids of all texts are encoded several times with BPE dropout, once without it.
    """

    def __init__(
        self, emoji: Emoji, rows: np.ndarray, tokenizer: Tokenizer, rng: np.random.Generator
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
        for _ in range(4):
            tokenizer.model.dropout = 0.15
            versions.append(encode(tokenizer, texts))
        tokenizer.model.dropout = None
        self.ids = torch.stack(versions)  # (versions, texts, T)
        self.spans = torch.tensor(spans)  # (rows, languages, 2)

    def to(self, device: torch.device) -> Texts:
        self.ids, self.spans = self.ids.to(device), self.spans.to(device)
        return self

    def draw(self, index: Tensor) -> Tensor:
        """Draw the ids (B, T) of a text for each row (B,)."""
        count, device = len(index), index.device
        language = torch.randint(2, (count,), device=device)
        first, number = self.spans[index, language].unbind(-1)
        chosen = first + (torch.rand(count, device=device) * number).long()
        return self.ids[torch.randint(len(self.ids), (count,), device=device), chosen]


def compose(images: Tensor, background: Tensor) -> Tensor:
    """Paste RGBA bytes (B, H, W, 4) on plain backgrounds (B, 3): (B, 3, H, W) from 0 to 1."""
    x = images.permute(0, 3, 1, 2).float() / 255
    alpha = x[:, 3:]
    return x[:, :3] * alpha + background[:, :, None, None] * (1 - alpha)


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
    return ((x.clamp(0, 1) - MEAN) / STD).contiguous()


def plain(images: Tensor) -> Tensor:
    """Pictures on white."""
    return (compose(images, torch.ones(len(images), 3, device=images.device)) - MEAN) / STD


class Evaluation:
    """Recall@1 among some emoji, of every language."""

    def __init__(self, emoji: Emoji, rows: np.ndarray, tokenizer: Tokenizer, device: torch.device) -> None:
        position = {int(row): n for n, row in enumerate(rows)}
        chosen = [n for n, row in enumerate(emoji.rows.tolist()) if row in position]
        self.images = emoji.images[chosen]
        self.owner = torch.tensor([position[int(emoji.rows[n])] for n in chosen], device=device)
        self.count, self.device = len(rows), device
        self.texts = {}
        for lang in LANGUAGES:
            names = [emoji.names[lang][row] for row in rows]
            extended = [", ".join([emoji.names[lang][row], *emoji.keywords[lang][row][:4]]) for row in rows]
            self.texts[lang] = encode(tokenizer, names).to(device)
            self.texts[f"{lang}_with_keywords"] = encode(tokenizer, extended).to(device)

    @torch.no_grad()
    def __call__(self, model: TwoTower) -> dict[str, float]:
        was_training = model.training
        model.eval()
        vectors = torch.cat(
            [model.embed_images(plain(part.to(self.device))).float() for part in self.images.split(512)]
        )
        means = torch.zeros(self.count, vectors.shape[1], device=self.device)
        means = F.normalize(means.index_add(0, self.owner, vectors), dim=-1)
        figures: dict[str, float] = {}
        for key, ids in self.texts.items():
            texts = model.embed_texts(ids).float()
            own = torch.arange(self.count, device=self.device)
            pairs = {
                "picture_to_name": ((vectors @ texts.T).argmax(-1), self.owner),
                "emoji_to_name": ((means @ texts.T).argmax(-1), own),
                "name_to_emoji": ((texts @ means.T).argmax(-1), own),
            }
            figures |= {
                f"{key}/{name}": float((found == true).float().mean())
                for name, (found, true) in pairs.items()
            }
        model.train(was_training)
        return figures


def train(options: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    emoji = read_emoji(data_folder() / "emoji-captions")
    held_out = held_out_rows(len(emoji.names["en"]))
    seen = np.setdiff1d(np.arange(len(emoji.names["en"])), held_out)[: options.emoji]
    corpus = [
        text
        for lang in LANGUAGES
        for row in seen
        for text in (emoji.names[lang][row], *emoji.keywords[lang][row])
    ]
    tokenizer = train_tokenizer(corpus, options.vocab_size)
    texts = Texts(emoji, seen, tokenizer, rng).to(device)
    of_row = torch.full((len(emoji.names["en"]),), -1)
    of_row[torch.from_numpy(seen)] = torch.arange(len(seen))
    pictures = (of_row[emoji.rows] >= 0).nonzero()[:, 0]
    images, owner = emoji.images[pictures].to(device), of_row[emoji.rows[pictures]].to(device)
    by_owner = [(owner == n).nonzero()[:, 0] for n in range(len(seen))]
    most = max(map(len, by_owner))
    numbers = torch.arange(most, device=device)
    table = torch.stack([rows[numbers % len(rows)] for rows in by_owner])  # (emoji, styles)

    model = build_initialized(make_spec(tokenizer.get_vocab_size(), small=options.small)).to(device)
    assert isinstance(model, TwoTower)
    averaged = build_model(model.spec).to(device).requires_grad_(False)
    averaged.load_state_dict(model.state_dict())
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.98), fused=device.type == "cuda")
    forward: Any = torch.compile(model) if options.compile else model
    batch = min(options.batch, len(seen))
    held, known = (
        Evaluation(emoji, rows, tokenizer, device)
        for rows in (held_out, np.sort(rng.permutation(seen)[:HELD_OUT]))
    )
    curve: list[dict[str, float]] = []
    start, step, next_report = time.perf_counter(), 0, 0.0
    seconds = 60.0 * options.minutes
    model.train()
    while (elapsed := time.perf_counter() - start) < seconds:
        share = elapsed / seconds
        lr = options.lr * min(1.0, (step + 1) / options.warmup) * math.cos(share * math.pi / 2) ** 2
        for group in optimizer.param_groups:
            group["lr"] = lr
        # every emoji at most once in a batch, in a random style
        chosen = torch.randperm(len(seen), device=device)[:batch]
        style = torch.randint(most, (batch,), device=device)
        pixels = images[table[chosen, style]]
        pixels, ids = plain(pixels) if options.plain else augment(pixels), texts.draw(chosen)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            output = forward(pixels, ids)
        same = (ids[:, None] == ids).all(-1)  # another emoji with the same text is no negative
        targets = torch.arange(batch, device=device)
        loss = contrastive_loss(output.logits_per_image, targets, same)
        loss = (loss + contrastive_loss(output.logits_per_text, targets, same)) / (2 * batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.head.scale.clamp_(max=math.log(100))
            decay = min(options.ema, (step + 1) / (step + 10))
            torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - decay)
        step += 1
        if elapsed >= next_report:
            point = {"seconds": round(elapsed, 1), "step": step, "loss": float(loss.detach())}
            point |= {name: value for name, value in held(averaged).items() if "_with" not in name}
            curve.append(point)
            print(json.dumps({key: round(value, 4) for key, value in point.items()}), flush=True)
            next_report += seconds / options.reports
    figures = held(averaged)
    trained = {f"seen/{name}": value for name, value in known(averaged).items()}
    for name, value in {**figures, **trained}.items():
        print(f"{name:40s} {value:.1%}")
    if options.model:
        save(Bundle(model=averaged.eval().cpu()), options.model)
        tokenizer.save(str(Path(options.model) / "tokenizer.json"))
    return {
        "row": "contrastive-emoji",
        "held_out": HELD_OUT,
        "rule": "the first 300 of numpy.random.default_rng(0).permutation(1911)",
        "chance": 1 / HELD_OUT,
        "steps": step,
        "batch": batch,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(time.perf_counter() - start, 1),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seed": options.seed,
        "recall_at_1": figures,
        "recall_at_1_of_300_training_emoji": trained,
        "curve": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=7.0, help="training time")
    parser.add_argument("--batch", type=int, default=1536, help="pairs in a batch, of different emoji")
    parser.add_argument("--lr", type=float, default=8e-4)
    parser.add_argument("--warmup", type=int, default=300, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.2)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--vocab-size", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reports", type=int, default=20, help="number of evaluations during training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--small", action="store_true", help="a model for a try on a CPU")
    parser.add_argument("--plain", action="store_true", help="no augmentation")
    parser.add_argument("--emoji", type=int, help="train on the first N emoji only")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--model", type=Path, help="folder for the trained model")
    options = parser.parse_args()
    record = train(options)
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
