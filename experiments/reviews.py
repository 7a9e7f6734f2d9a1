"""Sentiment of Korean film reviews (NSMC) with an encoder trained from scratch on 150,000 reviews.

A run is a variant and a seed: "recipe/1" is the recipe, the others change one setting, and "ngrams" is a
linear model on character n-grams as the baseline. The split is not the published one. Some short reviews of
the test set are in the training set too, so the accuracy on the others is recorded as well.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from experiments import ngrams
from experiments.paths import Workspace, glassformer
from experiments.records import RunRecord, hardware, keep, note
from experiments.training_runs import Trained, train
from glassformer.weights.atomic_write import atomic_write

ROW, RECIPE = "nsmc", "classify-nsmc"
LEAN = ("training.max_generate_samples=16", "training.log_samples=0", "training.save_steps=100000")
WAYS: dict[str, tuple[str, ...]] = {
    "recipe": (),
    "plain": (
        *(
            "data.bpe_dropout=0",
            "data.mask_prob=0",
            "data.mlm_weight=0",
            "training.r_drop=0",
            "training.label_smoothing=0",
        ),
        *("training.ema=0", "training.load_best_model_at_end=true", "model.dropout=0.1", "training.epochs=6"),
    ),
    "no-recut": ("data.bpe_dropout=0",),
    "more-recut": ("data.bpe_dropout=0.25",),
    "no-guess": ("data.mlm_weight=0",),
    "no-hide": ("data.mlm_weight=0", "data.mask_prob=0"),
    "no-twice": ("training.r_drop=0",),
    "more-guess": ("data.mlm_weight=1",),
    "unigram": ("tokenizer.kind=unigram",),
    "vocab16k": ("tokenizer.vocab_size=16000",),
    "vocab4k": ("tokenizer.vocab_size=4000",),
    "wide": ("model.d_model=384", "model.d_ff=1536", "model.num_heads=6", "training.lr=0.0005"),
    "shallow": ("model.num_layers=2",),
    "long": ("training.epochs=30",),
    "after-guessing": ("training.epochs=6", "training.lr=0.0003"),
}
# Pretraining: almost only masked language modeling, on the same reviews.
GUESSING = ("data.mlm_weight=30", "training.r_drop=0", "training.epochs=25", "training.lr=0.001")


def run(workspace: Workspace, name: str) -> None:
    """Train one variant with one seed, and measure it on the test set."""
    way, seed = name.split("/")
    data = workspace.data / "nsmc"
    if way == "ngrams":
        _linear(workspace, name, data)
        return
    (data / "train.tsv.gz").stat()  # fail before a run starts, not during it
    trained = learned(workspace, name, int(seed), way, (f"data.train=[{data / 'train.tsv.gz'}]", *LEAN))
    tests = {"accuracy": data / "test.tsv.gz", "accuracy of unseen": unseen(data, workspace.prepared(ROW))}
    figures: dict[str, float] = {}
    for figure, path in tests.items():
        command = (
            "evaluate",
            trained.model,
            path,
            "--columns",
            "document,label",
            "--device",
            workspace.device,
        )
        metrics = json.loads(glassformer(*command, "--batch-tokens", "65536", "--json"))["metrics"]
        figures[figure] = 100 * metrics["accuracy"]
    note(workspace, ROW, name, seed=int(seed), trained=trained, figures=figures)


def learned(workspace: Workspace, name: str, seed: int, way: str, changes: Sequence[str]) -> Trained:
    """The run of a variant; if it continues another, with the seconds of both."""

    def go(name: str, *more: str) -> Trained:
        return train(workspace, ROW, name, RECIPE, seed=seed, of="accuracy", changes=(*changes, *more))

    if way != "after-guessing":
        return go(name, *WAYS[way])
    first = go(f"guessing/{seed}", *GUESSING)
    then = go(name, *WAYS[way], f"model.folder={first.model}")
    return replace(then, seconds=first.seconds + then.seconds)


def rows_of(path: Path) -> list[str]:
    """The lines of a table, with its header: id, review, label."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def unseen(data: Path, folder: Path) -> Path:
    """A file of the test reviews that are not in the training set."""
    path = folder / "unseen.tsv"
    if not path.exists():
        known = {row.split("\t")[1] for row in rows_of(data / "train.tsv.gz")[1:]}
        header, *rows = rows_of(data / "test.tsv.gz")
        unique_rows = [row for row in rows if row.split("\t")[1] not in known]
        with atomic_write(path) as file:  # another run may be making the same file
            file.writelines(f"{row}\n".encode() for row in (header, *unique_rows))
    return path


def _linear(workspace: Workspace, name: str, data: Path) -> None:
    """The linear model on character n-grams."""
    began = time.monotonic()
    learned = ngrams.learn(*_texts(rows_of(data / "train.tsv.gz")))
    seconds = time.monotonic() - began
    tests: Mapping[str, list[str]] = {
        "accuracy": rows_of(data / "test.tsv.gz"),
        "accuracy of unseen": unseen(data, workspace.prepared(ROW)).read_text(encoding="utf-8").splitlines(),
    }
    figures = {figure: 100 * learned.accuracy(*_texts(rows)) for figure, rows in tests.items()}
    keep(
        workspace,
        RunRecord(
            row=ROW,
            name=name,
            seed=1,
            parameters=learned.parameters,
            seconds=round(seconds, 1),
            figures={figure: round(value, 4) for figure, value in figures.items()},
            hardware=hardware("cpu"),
        ),
    )


def _texts(rows: list[str]) -> tuple[list[str], list[int]]:
    """Reviews and labels of a table."""
    cells = [row.split("\t") for row in rows[1:]]
    return [cell[1] for cell in cells], [int(cell[2]) for cell in cells]
