"""Captions of photographs, from 76 of them: the captioner of scenes, fine-tuned on coco-mini.

101 photographs have five captions each. They are divided into four parts; each part is described by a model
that was fine-tuned on the other three, so that every photograph is a test image once. The decoder starts
from `pocket-captioner`, with the words that it knows; further words are new. Its image encoder is frozen.

Beside it stands the nearest neighbor: the first caption of the training photograph with the most similar
colors and brightness. With so few photographs, a captioner learns the style of captions more than their
content, which is why both are reported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.paths import Workspace
from experiments.vision_training import extract, record, train_recipe
from glassformer.bundle import load, save
from glassformer.core.build import build_model
from glassformer.data.image_files import load_image
from glassformer.families.sidecars import JobInfo
from glassformer.metrics import caption_metric
from glassformer.pretrained import folder_of
from glassformer.processors.text import require_tokenizer
from glassformer.tokenization import Tokenizer, TokenizerPlan, train_tokenizer
from glassformer.training.hardware import device_for
from glassformer.weights.atomic_write import atomic_folder

ROW, PARTS, SECONDS = "caption-coco", 4, 40.0
MAX_LEN = 24
RECIPE: dict[str, Any] = {
    "job": "caption",
    "training": {
        **{"lr": 3e-4, "batch_size": 64, "weight_decay": 0.1, "ema": 0.98, "max_grad_norm": 1.0},
        **{"label_smoothing": 0.1, "compile": "off", "freeze": ["src_embed", "encoder"]},
    },
}
Entry = dict[str, Any]  # an image of COCO's format with its captions


def photographs(data: Path) -> list[Entry]:
    """Return the photographs with captions, in a random order."""
    content = json.loads((data / "annotations.json").read_text("utf-8"))
    entries = [image for image in content["images"] if image.get("captions")]
    return [entries[n] for n in np.random.default_rng(0).permutation(len(entries))]


def split(entries: Sequence[Entry], part: int) -> tuple[list[Entry], list[Entry]]:
    """Return the photographs to train on, and those of this part.

    >>> split([{"id": n} for n in range(4)], 1)
    ([{'id': 0}, {'id': 2}, {'id': 3}], [{'id': 1}])
    """
    return [e for n, e in enumerate(entries) if n % PARTS != part], [*entries[part::PARTS]]


def features(path: Path) -> NDArray[np.float64]:
    """Return a histogram of 64 colors and 8 x 8 gray pixels of an image, each of length 1."""
    image = load_image(path).convert("RGB")
    bins = np.asarray(image.resize((64, 64))).reshape(-1, 3) // 64
    colors = np.sqrt(np.bincount(bins @ (16, 4, 1), minlength=64))
    gray = np.asarray(image.convert("L").resize((8, 8)), np.float64).ravel()
    gray -= gray.mean()
    return np.concatenate([part / max(np.linalg.norm(part), 1e-9) for part in (colors, gray)])


def nearest_captions(train: Sequence[Entry], test: Sequence[Entry], images: Path) -> list[str]:
    """Return the first caption of the training photograph that is most similar to each test photograph."""
    known, asked = (np.stack([features(images / e["file_name"]) for e in part]) for part in (train, test))
    return [train[n]["captions"][0] for n in (asked @ known.T).argmax(1)]


def scores(captions: Sequence[str], entries: Sequence[Entry]) -> dict[str, float]:
    """Return BLEU-4 and CIDEr-D."""
    metrics = caption_metric([*captions], [entry["captions"] for entry in entries])
    return {name: score.score for name, score in metrics.items()}


def write_base(tokenizer: Tokenizer, folder: Path) -> Path:
    """Write pocket-captioner with another vocabulary: words in both keep their embedding."""
    bundle = load(folder_of("pocket-captioner"))
    spec: Any = bundle.spec
    target = replace(spec.target, vocab_size=tokenizer.vocab_size)
    head = replace(spec.head, vocab_size=tokenizer.vocab_size)
    model = build_model(replace(spec, target=target, head=head, start_id=tokenizer.eos_id))
    old, new = bundle.model.state_dict(), model.state_dict()
    known = require_tokenizer(bundle)
    pairs = [
        (row, known_row)
        for row in range(tokenizer.vocab_size)
        if (known_row := known.token_id(*tokenizer.tokens([row]))) is not None
    ]
    rows, known_rows = (list(part) for part in zip(*pairs, strict=True))
    for name, value in new.items():
        if value.shape == old[name].shape:
            value.copy_(old[name])
        else:
            torch.nn.init.normal_(value, std=0.02)
            value[rows] = old[name][known_rows].to(value.dtype)
    model.load_state_dict(new)
    end, pad = tokenizer.eos_id, tokenizer.pad_id
    ids = {"decoder_start_token_id": end, "eos_token_id": end, "pad_token_id": pad}
    job = JobInfo(name="caption", max_len=MAX_LEN)
    with atomic_folder(folder) as unfinished:
        save(replace(bundle, model=model, tokenizer=tokenizer, generation=ids, job=job), unfinished)
    return folder


def run(workspace: Workspace, name: str) -> None:
    """Fine-tune a captioner for each part, and score all captions together."""
    data = extract(workspace, ROW, "coco-mini/coco-mini.tar")
    images, entries = data / "images", photographs(data)[: workspace.most]
    figures: dict[str, float] = {"photographs": len(entries)}
    tested: list[Entry] = []
    captions: list[str] = []
    nearest: list[str] = []
    workspace = replace(workspace, seconds=(workspace.seconds or SECONDS) / PARTS)
    for part in range(PARTS):
        train, test = split(entries, part)
        folder = workspace.run(ROW, name) / f"part-{part}"
        files = {}
        for key, some in (("train", train), ("valid", test)):
            files[key] = folder / f"{key}.json"
            files[key].parent.mkdir(parents=True, exist_ok=True)
            files[key].write_text(json.dumps({"images": some}), "utf-8")
        texts = [caption for entry in train for caption in entry["captions"]]
        tokenizer = train_tokenizer(texts, TokenizerPlan(kind="word", lowercase=True, vocab_size=2000))
        recipe = {
            **RECIPE,
            "data": {key: [str(file)] for key, file in files.items()}
            | {"images": str(images), "max_len": MAX_LEN, "flip_prob": 0.5, "max_shift": 8},
            "model": {"folder": str(write_base(tokenizer, folder / "base"))},
        }
        job, plan, trained = train_recipe(
            workspace, ROW, f"{name}/part-{part}/{name}", recipe, of="cider", seconds=SECONDS
        )
        plan.learner.eval()
        samples = job.validate(
            plan.learner, job.examples(job.corpus.valid), device_for(workspace.device)
        ).samples
        described = {Path(one.source).name: one.got for one in samples}
        captions += [described[entry["file_name"]] for entry in test]
        nearest += nearest_captions(train, test, images)
        tested += test
    for key, value in scores(captions, tested).items():
        figures[key] = value
    for key, value in scores(nearest, tested).items():
        figures[f"nearest {key}"] = value
    for entry, caption, other in [*zip(tested, captions, nearest, strict=True)][:12]:
        print(f"{entry['file_name']}: {caption} | nearest: {other} | {entry['captions'][0]}")
    record(workspace, ROW, name, replace(trained, seconds=PARTS * trained.seconds), "cider", figures)
